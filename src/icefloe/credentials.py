# ruff: isort: skip_file
"""Credentials, under Icechunk's name for the module."""

from icefloe.storage.credentials import (
    AnyAzureCredential as AnyAzureCredential,
    AnyAzureRefreshableCredential as AnyAzureRefreshableCredential,
    AnyAzureStaticCredential as AnyAzureStaticCredential,
    AnyCredential as AnyCredential,
    AnyGcsCredential as AnyGcsCredential,
    AnyGcsStaticCredential as AnyGcsStaticCredential,
    AnyS3Credential as AnyS3Credential,
    AzureCredentials as AzureCredentials,
    AzureRefreshableCredential as AzureRefreshableCredential,
    AzureStaticCredentials as AzureStaticCredentials,
    Credentials as Credentials,
    GcsBearerCredential as GcsBearerCredential,
    GcsCredentials as GcsCredentials,
    GcsStaticCredentials as GcsStaticCredentials,
    S3Credentials as S3Credentials,
    S3StaticCredentials as S3StaticCredentials,
    azure_anonymous_credentials as azure_anonymous_credentials,
    azure_credentials as azure_credentials,
    azure_from_env_credentials as azure_from_env_credentials,
    azure_refreshable_credentials as azure_refreshable_credentials,
    azure_static_credentials as azure_static_credentials,
    containers_credentials as containers_credentials,
    gcs_anonymous_credentials as gcs_anonymous_credentials,
    gcs_credentials as gcs_credentials,
    gcs_from_env_credentials as gcs_from_env_credentials,
    gcs_refreshable_credentials as gcs_refreshable_credentials,
    gcs_static_credentials as gcs_static_credentials,
    s3_anonymous_credentials as s3_anonymous_credentials,
    s3_credentials as s3_credentials,
    s3_from_env_credentials as s3_from_env_credentials,
    s3_refreshable_credentials as s3_refreshable_credentials,
    s3_static_credentials as s3_static_credentials,
)

HttpAccess = Credentials.HttpAccess
LocalFileSystemAccess = Credentials.LocalFileSystemAccess
