//! NCCL communicators that never block: every wait on the host has a deadline.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::nccl::sys::ncclComm_t;

use super::config::config;
use super::environment;
use super::group_call::{GroupEnd, Queue};
use super::handle::Life;
use super::unique_id::Id;
use crate::driver::{Context, Stream};
use crate::error::Error;
use crate::nccl::{IN_PROGRESS, Nccl, SUCCESS};

const JOINING: &str = "joining a group";

const SPLIT_NOCOLOR: c_int = -1;

/// How long a communicator that is dropped without [`Communicator::finish`] may take to end in good order.
const DROP_DEADLINE: Duration = Duration::from_secs(2);

/// A rank's place in a group of ranks, each with its own GPU, that run collectives through NCCL.
///
/// Operations are enqueued on a stream and run when it gets to them. All ranks of the group must enqueue the
/// same operations in the same order. A method returns when its operation is in the stream, so that an event
/// which is recorded next comes after it.
///
/// Methods may be called from any thread; each waits for the one before to be enqueued. After any error the
/// communicator is of no more use, and dropping it aborts it.
pub struct Communicator {
    life: Arc<Life>,
    rank: usize,
    size: usize,
}

impl Communicator {
    /// Joins the group that `id` names, as `rank` of `size`, on the GPU of `context`. `group` is its name in
    /// messages.
    ///
    /// # Errors
    /// [`Error::Nccl`], [`Error::Deadline`]; [`Error::InvalidArgument`] if there is no such rank, or NCCL is set to what would
    /// make communicators wait for ever.
    pub fn init(
        nccl: &'static Nccl,
        context: &Arc<Context>,
        group: &str,
        id: &Id,
        rank: usize,
        size: usize,
        deadline: Duration,
    ) -> Result<Self, Error> {
        Self::begin(nccl, context, group, id, rank, size)?.joined(deadline)
    }

    /// Begins what [`init`](Self::init) does; [`joined`](Self::joined) waits for it. In between it can be given to a
    /// [`Watch`](crate::Watch), which ends the wait when it hears that another rank has failed.
    ///
    /// # Errors
    /// As [`init`](Self::init).
    pub fn begin(
        nccl: &'static Nccl,
        context: &Arc<Context>,
        group: &str,
        id: &Id,
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
        let join = nccl.calls.init_rank_config;
        // SAFETY: NCCL copies the configuration and writes the pointer before it returns.
        let code = context.within(|| unsafe { join(&mut raw, c_size, id.0, c_rank, &mut config(None)) })?;
        if !matches!(code, SUCCESS | IN_PROGRESS) || raw.is_null() {
            let (name, text) = nccl.describe(code);
            let (operation, group) = (operation.to_owned(), group.to_owned());
            return Err(Error::Nccl { call: "ncclCommInitRankConfig", name, text, operation, group });
        }
        let life = Arc::new(Life::new(nccl, context.clone(), group.to_owned(), raw));
        let this = Self { life, rank, size };
        // Now with what NCCL's files say.
        environment::check().inspect_err(|error| this.abort(&error.reason()))?;
        Ok(this)
    }

    /// Waits until all ranks have joined.
    ///
    /// # Errors
    /// [`Error::Nccl`], [`Error::Deadline`], [`Error::Aborted`].
    pub fn joined(self, deadline: Duration) -> Result<Self, Error> {
        self.life.settle(JOINING, "ncclCommInitRankConfig", Instant::now(), deadline)?;
        Ok(self)
    }

    /// Makes groups of the ranks that give the same `color`, ordered by `key` and then by rank; `None` joins
    /// no group. All ranks must call it. `group` is the new group's name in messages.
    ///
    /// # Errors
    /// [`Error::Nccl`], [`Error::Deadline`], [`Error::Aborted`].
    pub fn split(
        &self,
        group: &str,
        color: Option<u32>,
        key: usize,
        deadline: Duration,
    ) -> Result<Option<Self>, Error> {
        self.split_off(group, color, key, deadline, None)
    }

    /// As [`split`](Self::split); the kernels of the new group take at most `blocks` blocks of the GPU.
    ///
    /// # Errors
    /// As [`split`](Self::split).
    pub fn split_narrow(
        &self,
        group: &str,
        color: Option<u32>,
        key: usize,
        deadline: Duration,
        blocks: u32,
    ) -> Result<Option<Self>, Error> {
        self.split_off(group, color, key, deadline, Some(blocks))
    }

    fn split_off(
        &self,
        group: &str,
        color: Option<u32>,
        key: usize,
        deadline: Duration,
        blocks: Option<u32>,
    ) -> Result<Option<Self>, Error> {
        let operation = format!("splitting off group \"{group}\"");
        let invalid = |_| Error::InvalidArgument {
            operation: operation.clone(),
            reason: format!("color {color:?} and key {key} must be less than 2^31"),
        };
        let c_color = color.map_or(Ok(SPLIT_NOCOLOR), |color| c_int::try_from(color).map_err(invalid))?;
        let c_key = c_int::try_from(key).map_err(invalid)?;
        // NCCL writes the pointer when the split is done, perhaps after this has given up: then it stays.
        let slot: *mut ncclComm_t = Box::into_raw(Box::new(std::ptr::null_mut()));
        let nccl = self.life.nccl;
        let start = Instant::now();
        self.life.run(&operation, "ncclCommSplit", deadline, |raw| {
            // SAFETY: the communicator is alive, and the slot is freed only after NCCL has written it.
            match unsafe { (nccl.calls.split)(raw, c_color, c_key, slot, &mut config(blocks)) } {
                // Said at once, of what has only begun.
                SUCCESS => Ok(IN_PROGRESS),
                code => Ok(code),
            }
        })?;
        // SAFETY: made above; NCCL writes it before it says that it is done.
        let raw = *unsafe { Box::from_raw(slot) };
        if raw.is_null() {
            return if color.is_none() {
                Ok(None)
            } else {
                let (operation, reason) = (operation, "NCCL made no communicator".to_owned());
                Err(Error::InvalidArgument { operation, reason })
            };
        }
        let life = Arc::new(Life::new(nccl, self.life.context.clone(), group.to_owned(), raw));
        let mut this = Self { life, rank: 0, size: 0 };
        this.life.settle(&operation, "ncclCommSplit", start, deadline)?;
        this.rank = this.life.ask("ncclCommUserRank", nccl.calls.user_rank)?;
        this.size = this.life.ask("ncclCommCount", nccl.calls.count)?;
        Ok(Some(this))
    }

    /// This rank's place in the group.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks of the group.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The group's name in messages.
    pub fn group(&self) -> &str {
        &self.life.group
    }

    /// Puts what `enqueue` says into `stream`, which must be of this rank's GPU, as one operation whose parts run at
    /// the same time: sends and receives in both directions do not wait for each other. `operation` names it in messages;
    /// `deadline` is for getting it into the stream, for which NCCL may first have to connect ranks.
    ///
    /// # Errors
    /// [`Error::Nccl`], [`Error::Deadline`], [`Error::Aborted`]; [`Error::InvalidArgument`] if the stream is another GPU's.
    pub fn enqueue(
        &self,
        operation: &str,
        stream: &Stream,
        deadline: Duration,
        enqueue: impl FnOnce(&Queue<'_>),
    ) -> Result<(), Error> {
        if !self.life.context.is_same_gpu(stream.context()) {
            let reason = format!("the stream is not of the GPU of group \"{}\"", self.group());
            return Err(Error::InvalidArgument { operation: operation.to_owned(), reason });
        }
        let calls = &self.life.nccl.calls;
        self.life.run(operation, "ncclGroupEnd", deadline, |raw| {
            // SAFETY: takes nothing; every start is followed by an end on the same thread.
            match unsafe { (calls.group_start)() } {
                SUCCESS => {}
                code => return Err(("ncclGroupStart", code)),
            }
            let mut end = GroupEnd::new(calls);
            // SAFETY: `run` gives a communicator that is alive, and the stream outlives this call.
            let queue = unsafe { Queue::new(calls, raw, stream.raw()) };
            enqueue(&queue);
            let ended = end.end();
            queue.failed().map_or(Ok(ended), Err)
        })
    }

    /// The error of what runs in the background, if there is one.
    ///
    /// # Errors
    /// [`Error::Nccl`], [`Error::Aborted`].
    pub fn async_error(&self) -> Result<(), Error> {
        self.life.look("looking for errors")
    }

    /// Leaves the group when all that was enqueued is done; all ranks should. If that takes longer than
    /// `deadline`, or fails, the communicator is aborted.
    ///
    /// # Errors
    /// [`Error::Nccl`], [`Error::Deadline`], [`Error::Aborted`].
    pub fn finish(self, deadline: Duration) -> Result<(), Error> {
        self.life.finish(deadline)
    }

    /// Ends it at once, from any thread, also while others are inside its methods: they and all later calls
    /// return [`Error::Aborted`] with `reason`. What is in streams ends without a result.
    pub fn abort(&self, reason: &str) {
        self.life.abort(reason);
    }

    pub(crate) fn life(&self) -> &Arc<Life> {
        &self.life
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !self.life.is_open() {
            return;
        }
        if std::thread::panicking() {
            self.life.abort("a thread panicked");
        } else if self.life.has_failed() {
            self.life.abort("an earlier operation failed");
        } else if let Err(error) = self.life.finish(DROP_DEADLINE) {
            tracing::warn!("{error}");
        }
    }
}
