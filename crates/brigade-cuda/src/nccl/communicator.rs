//! NCCL communicators that never block: every wait on the host has a deadline.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::nccl::sys::ncclComm_t;

use super::config::config;
use super::environment;
use super::group_call::{GroupCall, GroupCallGuard};
use super::handle::CommHandle;
use super::library::{IN_PROGRESS, Nccl, SUCCESS};
use super::unique_id::UniqueId;
use crate::driver::{Context, Stream};
use crate::error::Error;

const JOINING: &str = "joining a group";

const SPLIT_NOCOLOR: c_int = -1;

/// How long a communicator that is dropped without [`Communicator::finalize`] may take to finalize.
const DROP_TIMEOUT: Duration = Duration::from_secs(2);

/// A rank's membership in a group of ranks, each with its own GPU, that run collectives through NCCL.
///
/// Operations are enqueued on a stream, and run when it gets to them. All ranks of the group must enqueue the same operations in
/// the same order. A method returns once its operation is in the stream, so that an event that is recorded next completes after it.
///
/// Methods may be called from any thread; each waits until the one before has been enqueued. After any error the communicator
/// cannot be used any more, and dropping it aborts it.
pub struct Communicator {
    handle: Arc<CommHandle>,
    rank: usize,
    size: usize,
}

impl Communicator {
    /// Joins the group that `id` names, as `rank` of `size`, on the GPU of `context`. `group` is its name in messages.
    ///
    /// # Errors
    /// [`Error::Nccl`], [`Error::Timeout`]; [`Error::InvalidArgument`] if there is no such rank, or NCCL is configured so that
    /// communicators would wait forever.
    pub fn init(
        nccl: &'static Nccl,
        context: &Arc<Context>,
        group: &str,
        id: &UniqueId,
        rank: usize,
        size: usize,
        timeout: Duration,
    ) -> Result<Self, Error> {
        Self::begin_init(nccl, context, group, id, rank, size)?.wait_ready(timeout)
    }

    /// Starts what [`init`](Self::init) does; [`wait_ready`](Self::wait_ready) waits for it. In between it can be registered
    /// with a [`Watchdog`](crate::Watchdog), which ends the wait when another rank fails.
    ///
    /// # Errors
    /// As [`init`](Self::init).
    pub fn begin_init(
        nccl: &'static Nccl,
        context: &Arc<Context>,
        group: &str,
        id: &UniqueId,
        rank: usize,
        size: usize,
    ) -> Result<Self, Error> {
        let operation = JOINING;
        environment::check()?;
        let (Ok(c_rank), Ok(c_size), true) = (c_int::try_from(rank), c_int::try_from(size), rank < size)
        else {
            let reason = format!("there is no rank {rank} among {size} ranks of group \"{group}\"");
            return Err(Error::InvalidArgument { operation: operation.to_owned(), reason });
        };
        let mut raw = std::ptr::null_mut();
        let init = nccl.functions.init_rank_config;
        // SAFETY: NCCL copies the configuration and writes the pointer before it returns.
        let code =
            context.with_current(|| unsafe { init(&mut raw, c_size, id.0, c_rank, &mut config(None)) })?;
        if !matches!(code, SUCCESS | IN_PROGRESS) || raw.is_null() {
            let (name, text) = nccl.describe(code);
            let (operation, group) = (operation.to_owned(), group.to_owned());
            return Err(Error::Nccl { call: "ncclCommInitRankConfig", name, text, operation, group });
        }
        let handle = Arc::new(CommHandle::new(nccl, context.clone(), group.to_owned(), raw));
        let this = Self { handle, rank, size };
        // Again: NCCL has now added what its files say.
        environment::check().inspect_err(|error| this.abort(&error.reason()))?;
        Ok(this)
    }

    /// Waits until all ranks have joined.
    ///
    /// # Errors
    /// [`Error::Nccl`], [`Error::Timeout`], [`Error::Aborted`].
    pub fn wait_ready(self, timeout: Duration) -> Result<Self, Error> {
        self.handle.wait_ready(JOINING, "ncclCommInitRankConfig", Instant::now(), timeout)?;
        Ok(self)
    }

    /// Makes a group of all ranks that pass the same `color`, ordered by `key` and then by rank; `None` joins no group. All ranks
    /// must call it. `group` is the new group's name in messages.
    ///
    /// # Errors
    /// [`Error::Nccl`], [`Error::Timeout`], [`Error::Aborted`].
    pub fn split(
        &self,
        group: &str,
        color: Option<u32>,
        key: usize,
        timeout: Duration,
    ) -> Result<Option<Self>, Error> {
        self.split_with(group, color, key, timeout, None)
    }

    /// As [`split`](Self::split); kernels of the new group use at most `max_ctas` thread blocks of the GPU.
    ///
    /// # Errors
    /// As [`split`](Self::split).
    pub fn split_with_max_ctas(
        &self,
        group: &str,
        color: Option<u32>,
        key: usize,
        timeout: Duration,
        max_ctas: u32,
    ) -> Result<Option<Self>, Error> {
        self.split_with(group, color, key, timeout, Some(max_ctas))
    }

    fn split_with(
        &self,
        group: &str,
        color: Option<u32>,
        key: usize,
        timeout: Duration,
        max_ctas: Option<u32>,
    ) -> Result<Option<Self>, Error> {
        let operation = format!("splitting off group \"{group}\"");
        let invalid = |_| Error::InvalidArgument {
            operation: operation.clone(),
            reason: format!("color {color:?} and key {key} must be less than 2^31"),
        };
        let c_color = color.map_or(Ok(SPLIT_NOCOLOR), |color| c_int::try_from(color).map_err(invalid))?;
        let c_key = c_int::try_from(key).map_err(invalid)?;
        // NCCL writes the pointer when the split is done, perhaps after this has timed out: then it is leaked.
        let slot: *mut ncclComm_t = Box::into_raw(Box::new(std::ptr::null_mut()));
        let nccl = self.handle.nccl;
        let start = Instant::now();
        self.handle.run(&operation, "ncclCommSplit", timeout, |raw| {
            // SAFETY: the communicator is alive, and the slot is freed only after NCCL has written it.
            match unsafe { (nccl.functions.split)(raw, c_color, c_key, slot, &mut config(max_ctas)) } {
                // NCCL returns this at once, when the split has only started.
                SUCCESS => Ok(IN_PROGRESS),
                code => Ok(code),
            }
        })?;
        // SAFETY: made above; NCCL writes it before it reports that it is done.
        let raw = *unsafe { Box::from_raw(slot) };
        if raw.is_null() {
            return if color.is_none() {
                Ok(None)
            } else {
                let (operation, reason) = (operation, "NCCL made no communicator".to_owned());
                Err(Error::InvalidArgument { operation, reason })
            };
        }
        let handle = Arc::new(CommHandle::new(nccl, self.handle.context.clone(), group.to_owned(), raw));
        let mut this = Self { handle, rank: 0, size: 0 };
        this.handle.wait_ready(&operation, "ncclCommSplit", start, timeout)?;
        this.rank = this.handle.query("ncclCommUserRank", nccl.functions.user_rank)?;
        this.size = this.handle.query("ncclCommCount", nccl.functions.count)?;
        Ok(Some(this))
    }

    /// This rank's number in the group.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks of the group.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The group's name in messages.
    pub fn group(&self) -> &str {
        &self.handle.group
    }

    /// Enqueues the calls that `enqueue` makes on `stream`, which must belong to this rank's GPU, as one operation whose parts
    /// run concurrently: sends and receives in both directions do not wait for each other. `operation` names it in messages.
    /// `timeout` limits how long it takes to enqueue, for which NCCL may first have to connect ranks.
    ///
    /// # Errors
    /// [`Error::Nccl`], [`Error::Timeout`], [`Error::Aborted`]; [`Error::InvalidArgument`] if the stream belongs to another GPU.
    pub fn enqueue(
        &self,
        operation: &str,
        stream: &Stream,
        timeout: Duration,
        enqueue: impl FnOnce(&GroupCall<'_>),
    ) -> Result<(), Error> {
        if !self.handle.context.is_same_gpu(stream.context()) {
            let reason = format!("the stream does not belong to the GPU of group \"{}\"", self.group());
            return Err(Error::InvalidArgument { operation: operation.to_owned(), reason });
        }
        let functions = &self.handle.nccl.functions;
        self.handle.run(operation, "ncclGroupEnd", timeout, |raw| {
            // SAFETY: takes nothing; every start is followed by an end on the same thread.
            match unsafe { (functions.group_start)() } {
                SUCCESS => {}
                code => return Err(("ncclGroupStart", code)),
            }
            let mut guard = GroupCallGuard::new(functions);
            // SAFETY: `run` passes a communicator that is alive, and the stream outlives this call.
            let group_call = unsafe { GroupCall::new(functions, raw, stream.raw()) };
            enqueue(&group_call);
            let ended = guard.end();
            group_call.failed().map_or(Ok(ended), Err)
        })
    }

    /// The error of what runs in the background, if there is one.
    ///
    /// # Errors
    /// [`Error::Nccl`], [`Error::Aborted`].
    pub fn async_error(&self) -> Result<(), Error> {
        self.handle.check_async_error("checking for asynchronous errors")
    }

    /// Leaves the group once everything that was enqueued is done, as all ranks should. If that takes longer than `timeout`, or
    /// fails, the communicator is aborted.
    ///
    /// # Errors
    /// [`Error::Nccl`], [`Error::Timeout`], [`Error::Aborted`].
    pub fn finalize(self, timeout: Duration) -> Result<(), Error> {
        self.handle.finalize(timeout)
    }

    /// Ends it at once, from any thread, even while others are inside its methods: those and all later calls return
    /// [`Error::Aborted`] with `reason`. Operations in streams end without a result.
    pub fn abort(&self, reason: &str) {
        self.handle.abort(reason);
    }

    pub(crate) fn handle(&self) -> &Arc<CommHandle> {
        &self.handle
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.handle.is_open() {
            return;
        }
        if std::thread::panicking() {
            self.handle.abort("a thread panicked");
        } else if self.handle.has_failed() {
            self.handle.abort("an earlier operation failed");
        } else if let Err(error) = self.handle.finalize(DROP_TIMEOUT) {
            tracing::warn!("{error}");
        }
    }
}
