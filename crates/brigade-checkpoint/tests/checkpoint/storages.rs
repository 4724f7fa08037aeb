//! Storages that fail on demand or count what is read, around real ones.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::{io, mem};

use brigade_checkpoint::{
    CheckpointDir, Error, LocalStorage, Result, StagingDir, Storage, StorageReader, StorageWriter,
};
use tempfile::TempDir;

/// A fresh storage of each kind, with what keeps it alive.
pub fn kinds() -> Vec<(&'static str, Arc<dyn Storage>, TempDir)> {
    #[cfg_attr(not(feature = "object-store"), allow(unused_mut))]
    let mut kinds = vec![{
        let folder = tempfile::tempdir().unwrap();
        let storage: Arc<dyn Storage> = Arc::new(LocalStorage::new(folder.path().join("checkpoints")));
        ("local", storage, folder)
    }];
    #[cfg(feature = "object-store")]
    {
        let folder = tempfile::tempdir().unwrap();
        let memory = brigade_checkpoint::ObjectStorage::in_memory().unwrap();
        kinds.push(("memory", Arc::new(memory), folder));
        let folder = tempfile::tempdir().unwrap();
        let url = format!("file://{}", folder.path().join("checkpoints").display());
        kinds.push(("file", brigade_checkpoint::open_storage(&url).unwrap(), folder));
    }
    kinds
}

/// What happens at the fatal operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// It fails; later ones work.
    Fail,
    /// The process dies: it and all later ones have no effect, but a write, of which half is done.
    Die,
}

/// Lets some operations through, then one goes wrong. Calls of the storage and of its sinks count.
#[derive(Clone, Debug)]
pub struct Faulty {
    inner: Arc<dyn Storage>,
    plan: Arc<Plan>,
}

#[derive(Debug)]
struct Plan {
    fault: Fault,
    left: Mutex<u64>,
    dead: AtomicBool,
    counted: AtomicU64,
}

impl Faulty {
    pub fn new(inner: Arc<dyn Storage>, after: u64, fault: Fault) -> Self {
        let plan =
            Plan { fault, left: Mutex::new(after), dead: AtomicBool::new(false), counted: AtomicU64::new(0) };
        Self { inner, plan: Arc::new(plan) }
    }

    /// Operations so far.
    pub fn counted(&self) -> u64 {
        self.plan.counted.load(Ordering::Relaxed)
    }
}

fn fault(path: &str) -> Error {
    Error::Io { operation: "reach", path: path.into(), source: io::Error::other("fault on demand") }
}

impl Plan {
    /// Counts an operation; whether it is the one that fails, or comes behind a death.
    fn hits(&self) -> bool {
        self.counted.fetch_add(1, Ordering::Relaxed);
        if self.dead.load(Ordering::Relaxed) {
            return true;
        }
        let mut left = self.left.lock().unwrap();
        if *left == 0 {
            *left = u64::MAX;
            self.dead.store(self.fault == Fault::Die, Ordering::Relaxed);
            return true;
        }
        *left = left.saturating_sub(1);
        false
    }

    fn pass(&self, path: &str) -> Result<()> {
        if self.hits() { Err(fault(path)) } else { Ok(()) }
    }
}

impl Storage for Faulty {
    fn location(&self) -> &str {
        self.inner.location()
    }

    fn staging_folder(&self, staging: &StagingDir) -> String {
        self.inner.staging_folder(staging)
    }

    fn create(&self, folder: &str, name: &str, bytes: u64) -> Result<Box<dyn StorageWriter>> {
        self.plan.pass(name)?;
        let inner = Some(self.inner.create(folder, name, bytes)?);
        Ok(Box::new(FaultySink { inner, plan: self.plan.clone() }))
    }

    fn link(&self, from: &str, to: &str, name: &str) -> Result<()> {
        self.plan.pass(name)?;
        self.inner.link(from, to, name)
    }

    fn open(&self, folder: &str, name: &str) -> Result<Option<Box<dyn StorageReader>>> {
        self.plan.pass(name)?;
        self.inner.open(folder, name)
    }

    fn published(&self) -> Result<Vec<CheckpointDir>> {
        self.plan.pass("list")?;
        self.inner.published()
    }

    fn publish(&self, staging: &StagingDir) -> Result<()> {
        self.plan.pass("publish")?;
        self.inner.publish(staging)
    }

    fn remove(&self, folder: &str) -> Result<()> {
        self.plan.pass(folder)?;
        self.inner.remove(folder)
    }

    fn unpublished(&self) -> Result<Vec<String>> {
        self.plan.pass("list")?;
        self.inner.unpublished()
    }

    fn free_space(&self) -> Result<Option<u64>> {
        self.plan.pass("free space")?;
        self.inner.free_space()
    }
}

struct FaultySink {
    inner: Option<Box<dyn StorageWriter>>,
    plan: Arc<Plan>,
}

impl StorageWriter for FaultySink {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let was_alive = !self.plan.dead.load(Ordering::Relaxed);
        let hit = self.plan.hits();
        let inner = self.inner.as_mut().unwrap();
        if !hit {
            return inner.write(bytes);
        }
        if was_alive {
            inner.write(&bytes[..bytes.len() / 2])?;
        }
        Err(fault("write"))
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.plan.pass("finish")?;
        self.inner.take().unwrap().finish()
    }
}

impl Drop for FaultySink {
    fn drop(&mut self) {
        if self.plan.dead.load(Ordering::Relaxed) {
            // The dead tidy nothing up.
            mem::forget(self.inner.take());
        }
    }
}

/// Which calls of [`Custom`] are replaced.
pub trait Behaviour: Send + Sync + std::fmt::Debug + 'static {
    /// Called before each write to a file, with the bytes that all writes had before it.
    fn before_write(&self, _written: u64, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    /// Called when a file is finished: what the caller is told.
    fn after_finish(&self, _name: &str) -> Result<()> {
        Ok(())
    }

    /// Called before a file is linked from a folder.
    fn before_link(&self, _from: &str, _name: &str) -> Result<()> {
        Ok(())
    }

    /// Called before a file is opened.
    fn before_open(&self, _folder: &str, _name: &str) {}

    /// Called before each read.
    fn before_read(&self, _name: &str, _offset: u64, _bytes: usize) {}

    /// What is said to be free.
    fn free_space(&self) -> Option<u64> {
        None
    }
}

/// A storage that lets a behaviour look at writes and reads.
#[derive(Debug)]
pub struct Custom<B> {
    inner: Arc<dyn Storage>,
    behaviour: Arc<B>,
    written: Arc<AtomicU64>,
}

impl<B: Behaviour> Custom<B> {
    pub fn new(inner: Arc<dyn Storage>, behaviour: B) -> Self {
        Self { inner, behaviour: Arc::new(behaviour), written: Arc::default() }
    }

    pub fn behaviour(&self) -> &B {
        &self.behaviour
    }
}

impl<B: Behaviour> Storage for Custom<B> {
    fn location(&self) -> &str {
        self.inner.location()
    }

    fn staging_folder(&self, staging: &StagingDir) -> String {
        self.inner.staging_folder(staging)
    }

    fn create(&self, folder: &str, name: &str, bytes: u64) -> Result<Box<dyn StorageWriter>> {
        let (behaviour, written) = (self.behaviour.clone(), self.written.clone());
        let (inner, name) = (self.inner.create(folder, name, bytes)?, name.to_owned());
        Ok(Box::new(CustomWriter { inner, name, behaviour, written }))
    }

    fn link(&self, from: &str, to: &str, name: &str) -> Result<()> {
        self.behaviour.before_link(from, name)?;
        self.inner.link(from, to, name)
    }

    fn open(&self, folder: &str, name: &str) -> Result<Option<Box<dyn StorageReader>>> {
        self.behaviour.before_open(folder, name);
        let inner = self.inner.open(folder, name)?;
        let (behaviour, name) = (self.behaviour.clone(), name.to_owned());
        Ok(inner.map(|inner| Box::new(CustomReader { inner, behaviour, name }) as Box<dyn StorageReader>))
    }

    fn published(&self) -> Result<Vec<CheckpointDir>> {
        self.inner.published()
    }

    fn publish(&self, staging: &StagingDir) -> Result<()> {
        self.inner.publish(staging)
    }

    fn remove(&self, folder: &str) -> Result<()> {
        self.inner.remove(folder)
    }

    fn unpublished(&self) -> Result<Vec<String>> {
        self.inner.unpublished()
    }

    fn free_space(&self) -> Result<Option<u64>> {
        Ok(self.behaviour.free_space())
    }
}

struct CustomWriter<B> {
    inner: Box<dyn StorageWriter>,
    name: String,
    behaviour: Arc<B>,
    written: Arc<AtomicU64>,
}

impl<B: Behaviour> StorageWriter for CustomWriter<B> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let before = self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.behaviour.before_write(before, bytes)?;
        self.inner.write(bytes)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.inner.finish()?;
        self.behaviour.after_finish(&self.name)
    }
}

struct CustomReader<B> {
    inner: Box<dyn StorageReader>,
    behaviour: Arc<B>,
    name: String,
}

impl<B: Behaviour> StorageReader for CustomReader<B> {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.behaviour.before_read(&self.name, offset, into.len());
        self.inner.read_at(offset, into)
    }
}
