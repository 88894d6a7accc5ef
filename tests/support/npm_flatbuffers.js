// Reads files of a repository with the npm package flatbuffers, which web viewers use.
// `node npm_flatbuffers.js flexbuffers FILE` prints the value, `... locations FILE` those of a manifest.
const fs = require("fs");
const { ByteBuffer } = require("flatbuffers");
const { toObject } = require("flatbuffers/js/flexbuffers");

const [kind, path] = process.argv.slice(2);
const bytes = new Uint8Array(fs.readFileSync(path));

function readLocations() {
  const buffer = new ByteBuffer(bytes);
  const field = (table, id) => {
    const offset = buffer.__offset(table, 4 + 2 * id);
    return offset ? table + offset : 0;
  };
  const vector = (table, id) => {
    const position = field(table, id);
    if (!position) return [];
    const start = buffer.__vector(position);
    const tables = [];
    for (let i = 0; i < buffer.__vector_len(position); i++) tables.push(buffer.__indirect(start + 4 * i));
    return tables;
  };
  const manifest = buffer.readInt32(buffer.position()) + buffer.position();
  const locations = [];
  for (const array of vector(manifest, 1))
    for (const ref of vector(array, 1)) {
      const position = field(ref, 5);
      locations.push(position ? buffer.__string(position) : null);
    }
  return locations;
}

const result = kind === "locations" ? readLocations() : toObject(bytes.buffer);
process.stdout.write(JSON.stringify(result, (_, value) => (typeof value === "bigint" ? Number(value) : value)));
