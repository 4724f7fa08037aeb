//! Whether a bucket can be used, before anything depends on it.

use std::time::Duration;

use futures_util::TryStreamExt;

use crate::reason::{is_without_bucket, reason};
use crate::{Client, Location, Result};

/// What a store says to somebody who wants to list a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// It lists it.
    Listed,
    /// There is no such bucket.
    NoBucket,
    /// The credentials are wrong, or do not allow it: what the store said.
    NoRight(String),
}

/// Asks for a list of what is below a location, which changes nothing and reads one page at most.
///
/// # Errors
/// [`Error::Url`](crate::Error::Url), or [`Error::Failed`](crate::Error::Failed) where the store does not answer within the deadline.
pub fn access(location: &Location, deadline: Duration) -> Result<Access> {
    let client = Client::open(location, deadline)?;
    let prefix = location.path();
    client.retry("list", prefix, async || match client.store().list(Some(prefix)).try_next().await {
        // That a name in the list cannot be read says nothing of the right to list.
        Ok(_) | Err(object_store::Error::InvalidPath { .. }) => Ok(Access::Listed),
        Err(error) if is_without_bucket(&error) => Ok(Access::NoBucket),
        Err(error) => match reason(&error) {
            said if said.starts_with("401") || said.starts_with("403") => Ok(Access::NoRight(said)),
            _ => Err(error),
        },
    })
}
