//! A store, and waiting for it.

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use object_store::aws::AmazonS3Builder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStore, RetryConfig};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::credentials::{self, aws_files};
use crate::location::{Location, Scheme};
use crate::reason::{is_without_bucket, may_pass, one_line, reason, was_cut};
use crate::timeouts::{FIRST_PAUSE, LONGEST_PAUSE, RequestTimeouts};
use crate::{Error, Result};

/// A request is given up, and made again, when it takes longer than this part of the deadline, or than [`LONGEST_REQUEST`]. What it sends is not counted in.
const REQUESTS_A_DEADLINE: u32 = 4;

/// See [`REQUESTS_A_DEADLINE`].
const LONGEST_REQUEST: Duration = Duration::from_secs(30);

/// A request that sends much is given up after this part of the deadline at the latest.
const UPLOADS_A_DEADLINE: u32 = 2;

/// A store, with what is needed to wait for it. Clones share both.
#[derive(Clone)]
pub struct Client {
    /// Where messages say that it is.
    root: String,
    store: Arc<dyn ObjectStore>,
    runtime: Arc<Runtime>,
    deadline: Duration,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.root).finish()
    }
}

impl Client {
    /// The store of a location. What an operation cannot do at once it tries again until `deadline`.
    ///
    /// Credentials and options come from the environment, by the names that the crate `object_store` reads
    /// (`GOOGLE_APPLICATION_CREDENTIALS`, `AWS_ACCESS_KEY_ID`, `AWS_REGION`, `AWS_ENDPOINT`, …), from the files in which AWS's and Google's own programs keep them, or
    /// from the machine's metadata.
    ///
    /// # Errors
    /// [`Error::Url`] where the store cannot be set up, [`Error::Failed`] within seconds where there are no credentials at all.
    pub fn open(location: &Location, deadline: Duration) -> Result<Self> {
        let wrong =
            |error: object_store::Error| Error::Url { url: location.to_string(), message: one_line(&error) };
        let longest = (deadline / REQUESTS_A_DEADLINE).min(LONGEST_REQUEST);
        let plain = location.as_url().scheme() == "http";
        let options = ClientOptions::new().with_timeout(longest).with_allow_http(plain);
        let retry =
            RetryConfig { max_retries: usize::MAX, retry_timeout: deadline, ..RetryConfig::default() };
        let timeouts = RequestTimeouts { answer: longest, most: deadline / UPLOADS_A_DEADLINE };
        let asks = credentials::are_unknown(location.scheme());
        let store: Arc<dyn ObjectStore> = match location.scheme() {
            Scheme::S3 => {
                if asks {
                    let store = s3(location, credentials::brief()).build().map_err(wrong)?;
                    wait_for(credentials::ask(location, &**store.credentials()), location)?;
                }
                let builder = s3(location, (options, retry)).with_http_connector(timeouts);
                Arc::new(builder.build().map_err(wrong)?)
            }
            Scheme::Gs => {
                if asks {
                    let store = gs(location, credentials::brief()).build().map_err(wrong)?;
                    wait_for(credentials::ask(location, &**store.credentials()), location)?;
                }
                let builder = gs(location, (options, retry)).with_http_connector(timeouts);
                Arc::new(builder.build().map_err(wrong)?)
            }
            Scheme::Http => {
                let builder = HttpBuilder::new().with_url(location.root()).with_client_options(options);
                Arc::new(builder.with_retry(retry).build().map_err(wrong)?)
            }
            Scheme::File => Arc::new(LocalFileSystem::new().with_automatic_cleanup(true)),
        };
        Self::new(store, location.root(), deadline)
    }

    /// A store of one's own; messages say that it is at `root`.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn new(store: Arc<dyn ObjectStore>, root: &str, deadline: Duration) -> Result<Self> {
        Ok(Self { root: root.into(), store, runtime: Arc::new(Runtime::start(root)?), deadline })
    }

    /// The store itself.
    pub fn store(&self) -> &dyn ObjectStore {
        &*self.store
    }

    /// Whether objects are files of this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.root.starts_with("file:")
    }

    /// How long an operation may take, including retries.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The URL of a path.
    pub fn url(&self, path: &Path) -> String {
        format!("{}/{path}", self.root)
    }

    /// As [`Self::retry`]. `None` where there is no such object.
    ///
    /// # Errors
    /// [`Error::Failed`] with `operation` and the URL of `path`, also where there is no such bucket.
    pub fn find<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        operation: &'static str,
        path: &Path,
        mut work: impl FnMut() -> F,
    ) -> Result<Option<T>> {
        self.retry(operation, path, || {
            let begun = work();
            async {
                match begun.await {
                    Ok(found) => Ok(Some(found)),
                    Err(error @ object_store::Error::NotFound { .. }) if !is_without_bucket(&error) => {
                        Ok(None)
                    }
                    Err(error) => Err(error),
                }
            }
        })
    }

    /// Runs an operation that may be done twice until it ends, or until the deadline: once more wherever the connection was cut, which leaves
    /// open whether it was done.
    ///
    /// # Errors
    /// [`Error::Failed`] with `operation` and the URL of `path`.
    pub fn retry<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        operation: &'static str,
        path: &Path,
        mut work: impl FnMut() -> F,
    ) -> Result<T> {
        let begin = Instant::now();
        self.wait(operation, path, async {
            let mut pause = FIRST_PAUSE;
            loop {
                match work().await {
                    Err(error) if was_cut(&error) && begin.elapsed() < self.deadline => {
                        sleep(pause).await;
                        pause = (2 * pause).min(LONGEST_PAUSE);
                    }
                    ended => return ended,
                }
            }
        })
    }

    /// Runs an operation until it ends, or until the deadline.
    ///
    /// # Errors
    /// [`Error::Failed`] with `operation` and the URL of `path`.
    pub fn wait<T>(
        &self,
        operation: &'static str,
        path: &Path,
        work: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T> {
        let failed = |message, may_pass| Error::Failed { operation, url: self.url(path), message, may_pass };
        // The operation's own retries end at the deadline, and then say why.
        let longest = self.deadline + LONGEST_REQUEST.min(self.deadline);
        match self.runtime.handle.block_on(async { tokio::time::timeout(longest, work).await }) {
            Ok(result) => result.map_err(|error| failed(reason(&error), may_pass(&error))),
            Err(_) => Err(failed(format!("no answer within {} s", longest.as_secs()), true)),
        }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.runtime.handle
    }
}

fn s3(location: &Location, (options, retry): (ClientOptions, RetryConfig)) -> AmazonS3Builder {
    let url = location.as_url().as_str();
    let begun = AmazonS3Builder::new().with_url(url).with_client_options(options).with_retry(retry);
    let set = |builder: AmazonS3Builder, (name, value): (String, String)| match name.parse() {
        Ok(key) => builder.with_config(key, value),
        Err(_) => builder,
    };
    aws_files::complete(variables("aws_").fold(begun, set))
}

fn gs(location: &Location, (options, retry): (ClientOptions, RetryConfig)) -> GoogleCloudStorageBuilder {
    let url = location.as_url().as_str();
    let begun = GoogleCloudStorageBuilder::new().with_url(url).with_client_options(options).with_retry(retry);
    let set = |builder: GoogleCloudStorageBuilder, (name, value): (String, String)| match name.parse() {
        Ok(key) => builder.with_config(key, value),
        Err(_) => builder,
    };
    variables("google_").fold(begun, set)
}

/// Waits for something that has its own deadline.
fn wait_for(work: impl Future<Output = Result<()>>, location: &Location) -> Result<()> {
    Runtime::start(location.root())?.handle.block_on(work)
}

/// The environment's variables whose names begin with `prefix`, in lower case. Those that are not text cannot be options.
fn variables(prefix: &str) -> impl Iterator<Item = (String, String)> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?.to_ascii_lowercase(), value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).filter(move |(name, _)| name.starts_with(prefix))
}

/// A thread that serves connections until this is dropped.
struct Runtime {
    handle: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Runtime {
    /// Messages say that it is for `root`.
    fn start(root: &str) -> Result<Self> {
        let failed = |error: std::io::Error| Error::Failed {
            operation: "start the thread for",
            url: root.into(),
            message: error.to_string(),
            may_pass: false,
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        let serve = move || {
            let _ = runtime.block_on(ended);
            // A name that is being looked up is not waited for.
            runtime.shutdown_background();
        };
        let thread = thread::Builder::new().name("object-store".into()).spawn(serve).map_err(failed)?;
        Ok(Self { handle, end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) =
            self.thread.take().filter(|thread| thread.thread().id() != thread::current().id())
        {
            // A panic there is of no interest any more.
            let _ = thread.join();
        }
    }
}
