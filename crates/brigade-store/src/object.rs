//! Objects, found by URL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};

use crate::client::Client;
use crate::location::{Location, Scheme};
use crate::{Error, Result};

/// One object in one version.
#[derive(Clone)]
pub struct Object {
    pub(crate) client: Client,
    pub(crate) path: Path,
    url: Arc<str>,
    size: u64,
    version: Arc<str>,
}

impl Object {
    pub(crate) fn new(client: &Client, found: ObjectMeta) -> Result<Self> {
        let url = client.url(&found.location);
        let Some(version) = version(&found) else {
            let message = "the server gives neither ETag nor Last-Modified, so a change of the file while it is read would go unnoticed; \
            download it";
            return Err(Error::Failed { operation: "read", url, message: message.into(), may_pass: false });
        };
        Ok(Self {
            client: client.clone(),
            path: found.location,
            url: url.into(),
            size: found.size,
            version: version.into(),
        })
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its name in the bucket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Its ETag, or else the time of its last change: it changes with the content.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether a server's description is of this object in this version.
    pub(crate) fn is(&self, found: &ObjectMeta) -> bool {
        found.size == self.size && version(found).as_deref() == Some(&*self.version)
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes, {})", self.url, self.size, self.version)
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        (&self.url, self.size, &self.version) == (&other.url, other.size, &other.version)
    }
}

impl Eq for Object {}

/// What distinguishes versions of an object.
fn version(found: &ObjectMeta) -> Option<String> {
    let time = || (found.last_modified.timestamp() != 0).then(|| found.last_modified.to_rfc3339());
    // Some servers leave out the quotes of a tag where they list it.
    let quoted = |tag: &String| match tag.ends_with('"') {
        true => tag.clone(),
        false => format!("\"{tag}\""),
    };
    found.e_tag.as_ref().map(quoted).or_else(time)
}

/// The object at a location, or else all objects below it, in the order of their names. There are none if nothing is there.
///
/// # Errors
/// [`Error::Url`], or [`Error::Failed`] where the store does not answer within the deadline.
pub fn find(location: &Location, deadline: Duration) -> Result<Vec<Object>> {
    let client = Client::open(location, deadline)?;
    let path = location.path();
    if !location.is_prefix()
        && let Some(found) = client.find("find", path, || client.store().head(path))?
    {
        return Ok(vec![Object::new(&client, found)?]);
    }
    if location.scheme() == Scheme::Http {
        return Ok(Vec::new());
    }
    below(&client, path)
}

/// All objects below the first `parts` parts of a location's name.
///
/// # Errors
/// As [`find`].
pub fn find_below(location: &Location, parts: usize, deadline: Duration) -> Result<Vec<Object>> {
    let prefix: Path = location.path().parts().take(parts).collect();
    below(&Client::open(location, deadline)?, &prefix)
}

fn below(client: &Client, prefix: &Path) -> Result<Vec<Object>> {
    let mut listed: Vec<ObjectMeta> =
        client.retry("list", prefix, || client.store().list(Some(prefix)).try_collect())?;
    listed.sort_unstable_by(|a, b| a.location.parts().cmp(b.location.parts()));
    // An empty one that is named like a folder marks it.
    let objects = listed.into_iter().filter(|found| found.size > 0 || found.location != *prefix);
    objects.map(|found| Object::new(client, found)).collect()
}
