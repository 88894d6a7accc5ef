"""Writes a small weather archive: one NetCDF4 file per day, with CF metadata.

``python archive.py FOLDER [DAYS] [FIRST]``. Temperature is packed into int16 with scale and offset
and has missing values, precipitation is float32; both are compressed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import h5netcdf
import numpy as np

LATITUDES = np.linspace(90, -90, 73, dtype=np.float32)
LONGITUDES = np.arange(0, 360, 2.5, dtype=np.float32)


def write_day(folder: Path, day: np.datetime64) -> Path:
    """Write the file of one day; values depend only on the day."""
    number = int((day - np.datetime64("2024-01-01")).astype(int))
    rng = np.random.default_rng(number)
    season = np.cos(2 * np.pi * (number - 15) / 365.25)
    shape = (1, len(LATITUDES), len(LONGITUDES))
    latitude, longitude = np.deg2rad(LATITUDES)[:, None], np.deg2rad(LONGITUDES)
    temperature = 253.15 + 45 * np.cos(latitude) - 12 * season * np.sin(latitude)
    standing_wave, moving_wave = np.sin(2 * longitude + 1), np.sin(5 * longitude - number / 3)
    temperature = temperature + 4 * np.cos(latitude) * (standing_wave + moving_wave)
    temperature = temperature[None] + rng.normal(0, 1, shape)
    rain = np.maximum(0, rng.gamma(0.4, 4, shape) - 2).astype(np.float32)
    packed = np.round((temperature - 273.15) / 0.01).astype(np.int16)
    packed[:, :2, ::7] = -32768  # missing values near the pole
    path = folder / f"day-{day}.nc"
    with h5netcdf.File(path, "w") as file:
        file.attrs["Conventions"] = "CF-1.11"
        file.attrs["title"] = "A synthetic weather archive"
        file.attrs["history"] = f"written for {day}"
        file.dimensions = {"time": None, "lat": len(LATITUDES), "lon": len(LONGITUDES)}
        file.resize_dimension("time", 1)
        time = file.create_variable("time", ("time",), "i4", data=np.array([number], np.int32))
        time.attrs["units"] = "days since 2024-01-01"
        time.attrs["calendar"] = "standard"
        time.attrs["standard_name"] = "time"
        for name, values, units in (
            ("lat", LATITUDES, "degrees_north"),
            ("lon", LONGITUDES, "degrees_east"),
        ):
            axis = file.create_variable(name, (name,), "f4", data=values)
            axis.attrs["units"] = units
            axis.attrs["standard_name"] = "latitude" if name == "lat" else "longitude"
        filters = {"compression": "gzip", "compression_opts": 1, "shuffle": True, "chunks": shape}
        t2m = file.create_variable(
            "t2m", ("time", "lat", "lon"), "i2", data=packed, fillvalue=np.int16(-32768), **filters
        )
        t2m.attrs["scale_factor"] = 0.01
        t2m.attrs["add_offset"] = 273.15
        t2m.attrs["units"] = "K"
        t2m.attrs["standard_name"] = "air_temperature"
        precipitation = file.create_variable(
            "tp", ("time", "lat", "lon"), "f4", data=rain, fillvalue=np.float32(np.nan), **filters
        )
        precipitation.attrs["units"] = "mm"
        precipitation.attrs["standard_name"] = "precipitation_amount"
    return path


def write_archive(folder: Path, days: int = 366, first: str = "2024-01-01") -> list[Path]:
    """Write the files of consecutive days."""
    folder.mkdir(parents=True, exist_ok=True)
    start = np.datetime64(first)
    return [write_day(folder, start + number) for number in range(days)]


if __name__ == "__main__":
    folder, days, first, *_ = [*sys.argv[1:], "366", "2024-01-01"][:3]
    write_archive(Path(folder), int(days), first)
