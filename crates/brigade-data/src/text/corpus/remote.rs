//! Files in object stores, by URL.

use std::time::Duration;

pub(crate) use store::{Object, Reader};

use super::files::SourceFile;
use crate::Result;

/// The files at a URL: one, all below a prefix that have a known extension, or those that a pattern matches.
pub(super) fn remote_files(url: &str, timeout: Duration) -> Result<Vec<SourceFile>> {
    store::files(url, timeout)
}

/// Whether a source is a URL rather than a path.
pub fn is_url(source: &str) -> bool {
    source.split_once("://").is_some_and(|(scheme, _)| {
        scheme.len() > 1 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
    })
}

/// Refuses a URL that cannot be read from, without asking any store; a path is not a URL.
///
/// # Errors
/// [`Error::InvalidUrl`](crate::Error::InvalidUrl), also for one with a user, a password or a query, which could be secrets;
/// [`Error::NoStores`](crate::Error::NoStores) in a program without object stores.
pub fn check_url(source: &str) -> Result<()> {
    if is_url(source) { store::check(source) } else { Ok(()) }
}

#[cfg(feature = "object-store")]
mod store {
    use std::collections::HashMap;
    use std::path::PathBuf;
    use std::time::Duration;

    use brigade_store::{Location, Scheme, find, find_below, read_at};
    pub(crate) use brigade_store::{Object, Reader};

    use super::super::files::{SourceFile, names_json, no_files, saved_files, unknown_extension};
    use crate::{Error, Result};

    pub(super) fn check(url: &str) -> Result<()> {
        location(url).map(drop)
    }

    fn location(url: &str) -> Result<Location> {
        let location = Location::parse(url)?;
        if location.scheme() == Scheme::File {
            let message = "give the file's path".into();
            return Err(Error::InvalidUrl { url: url.into(), message });
        }
        Ok(location)
    }

    pub(super) fn files(url: &str, timeout: Duration) -> Result<Vec<SourceFile>> {
        let location = location(url)?;
        if location.path().as_ref().contains(['*', '[']) {
            return globbed(&location, timeout);
        }
        let objects = find(&location, timeout)?;
        match objects.as_slice() {
            [] => return Err(Error::NotFound { path: location.to_string().into() }),
            [one] if one.path() == location.path() => {
                let file = SourceFile::remote(one.clone(), true);
                return file.map(|file| vec![file]).ok_or_else(|| unknown_extension(one.url().as_ref()));
            }
            _ => {}
        }
        let files = known(objects, location.path().parts().count())?;
        if files.is_empty() { Err(no_files(&location.to_string())) } else { Ok(files) }
    }

    fn globbed(location: &Location, timeout: Duration) -> Result<Vec<SourceFile>> {
        let malformed = |message: String| Error::Glob { pattern: location.to_string(), message };
        if location.scheme() == Scheme::Http {
            return Err(malformed("files on a web server cannot be listed; name each of them".into()));
        }
        let pattern = location.path().as_ref();
        let wanted = glob::Pattern::new(pattern).map_err(|error| malformed(error.to_string()))?;
        let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
        let fixed = pattern.split('/').take_while(|part| !part.contains(['*', '['])).count();
        let mut objects = find_below(location, fixed, timeout)?;
        objects.retain(|object| wanted.matches_with(object.path().as_ref(), options));
        let is_named = names_json(pattern);
        let files: Vec<SourceFile> =
            objects.into_iter().filter_map(|object| SourceFile::remote(object, is_named)).collect();
        if files.is_empty() { Err(no_files(&location.to_string())) } else { Ok(files) }
    }

    /// Those of known extensions that are not hidden below the first `above` folders; of a data set that was saved, its files alone.
    fn known(objects: Vec<Object>, above: usize) -> Result<Vec<SourceFile>> {
        let folder = |object: &Object| {
            object.path().as_ref().rsplit_once('/').map_or_else(String::new, |(folder, _)| folder.to_owned())
        };
        let mut saved: HashMap<String, Vec<PathBuf>> = HashMap::new();
        for object in &objects {
            let name = object.path().filename().unwrap_or_default();
            if name == "state.json" || name == "dataset_dict.json" {
                let json = read_at(&mut object.reader(0, object.size()), 0..object.size().min(MAX_STATE))?;
                let found =
                    saved_files(name, &json, object.url().trim_end_matches(name).trim_end_matches('/'))?;
                saved.extend(found.map(|files| (folder(object), files)));
            }
        }
        let named = |object: &Object| PathBuf::from(object.path().filename().unwrap_or_default());
        let is_hidden =
            |object: &Object| object.path().parts().skip(above).any(|part| part.as_ref().starts_with('.'));
        let visible: Vec<&Object> = objects.iter().filter(|object| !is_hidden(object)).collect();
        let mut wanted: Vec<&Object> = Vec::new();
        for object in &visible {
            let Some(names) = saved.get(&folder(object)) else {
                wanted.push(object);
                continue;
            };
            if named(object).as_os_str() != "state.json" {
                continue;
            }
            // In the place of its description, in the order that it gives.
            for name in names {
                let is_it = |other: &&&Object| folder(other) == folder(object) && named(other) == *name;
                let there = visible.iter().find(is_it).ok_or_else(|| Error::NotFound {
                    path: format!("{}{}", object.url().trim_end_matches("state.json"), name.display()).into(),
                })?;
                wanted.push(there);
            }
        }
        Ok(wanted.into_iter().filter_map(|object| SourceFile::remote(object.clone(), false)).collect())
    }

    /// More bytes of a `state.json` are not read.
    const MAX_STATE: u64 = 16 << 20;
}

/// Without the feature there are no such files.
#[cfg(not(feature = "object-store"))]
mod store {
    use std::time::Duration;

    use super::super::files::SourceFile;
    use crate::{Error, Result};

    pub(super) fn files(url: &str, _: Duration) -> Result<Vec<SourceFile>> {
        check(url).map(|()| Vec::new())
    }

    pub(super) fn check(url: &str) -> Result<()> {
        // What may be secret in it is not repeated.
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let end = rest.find(['?', '#']).unwrap_or(rest.len());
        let rest = rest[..end].rsplit('@').next().unwrap_or_default();
        Err(Error::NoStores { url: format!("{scheme}://{rest}") })
    }

    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(crate) enum Object {}

    impl Object {
        pub(crate) fn url(&self) -> &str {
            match *self {}
        }

        pub(crate) fn size(&self) -> u64 {
            match *self {}
        }

        pub(crate) fn version(&self) -> &str {
            match *self {}
        }

        pub(crate) fn reader(&self, _: u64, _: u64) -> Reader {
            match *self {}
        }
    }

    /// What no object is read by.
    pub(crate) type Reader = std::io::Empty;
}
