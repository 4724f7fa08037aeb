//! Leases in an object store, below the prefix of checkpoints.

use std::time::Duration;

use brigade_store::Client;
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions};

use super::LeaseLocation;
use crate::error::Result;
use crate::storage::{ObjectStorage, Storage};

/// The part of the name that leases have in common.
const FOLDER: &str = "lease";

/// A prefix in an object store.
pub(super) struct ObjectLeases {
    location: String,
    client: Client,
    prefix: Path,
}

impl ObjectLeases {
    pub(super) fn open(url: &str) -> Result<Self> {
        let storage = ObjectStorage::open(url)?;
        let location = Storage::location(&storage).to_owned();
        let (client, prefix) = storage.into_parts();
        Ok(Self { location, client, prefix: prefix.join(FOLDER) })
    }

    fn path(&self, name: &str) -> Path {
        self.prefix.clone().join(name)
    }
}

impl LeaseLocation for ObjectLeases {
    fn text(&self) -> String {
        self.location.clone()
    }

    fn names(&self) -> Result<Vec<String>> {
        let list = || self.client.store().list_with_delimiter(Some(&self.prefix));
        let listed = self.client.find("list", &self.prefix, list)?;
        let objects = listed.into_iter().flat_map(|listed| listed.objects);
        Ok(objects.filter_map(|object| Some(object.location.filename()?.to_owned())).collect())
    }

    fn create(&self, name: &str, content: &[u8]) -> Result<bool> {
        let path = self.path(name);
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        Ok(self.client.retry("create", &path, async || {
            match self.client.store().put_opts(&path, content.to_vec().into(), options.clone()).await {
                Ok(_) => Ok(true),
                Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                    // A request that was made twice may have succeeded at first.
                    let there = self.client.store().get(&path).await?.bytes().await?;
                    Ok(there == content)
                }
                Err(error) => Err(error),
            }
        })?)
    }

    fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.path(name);
        self.client.retry("write", &path, || self.client.store().put(&path, content.to_vec().into()))?;
        Ok(())
    }

    fn read(&self, name: &str) -> Result<Option<(Vec<u8>, Duration)>> {
        let path = self.path(name);
        Ok(self.client.find("read", &path, async || {
            let found = self.client.store().get(&path).await?;
            let micros = u64::try_from(found.meta.last_modified.timestamp_micros()).unwrap_or_default();
            Ok((found.bytes().await?.to_vec(), Duration::from_micros(micros)))
        })?)
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        self.client.find("remove", &path, || self.client.store().delete(&path))?;
        Ok(())
    }
}
