//! Building the stand-ins, running a test in a process of its own, and ranks as threads.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant};

use brigade_comm::{DType, ReduceOp};
use brigade_cuda::{Communicator, Context, Error, GroupCall, Stream, UniqueId, driver, nccl};
use libloading::Library;

/// Long enough for a busy machine.
pub const SOON: Duration = Duration::from_secs(10);

const CHILD: &str = "STAND_IN_CHILD";
const CHILD_ENDS: Duration = Duration::from_secs(60);

/// A test that runs in a process of its own. Settings are environment variables of the stand-ins, and
/// `libraries`: `both` (the default), `driver`, `none` or `without_split`, for what the loader finds.
macro_rules! stand_in_test {
    ($name:ident, [$($setting:literal = $value:expr),*], $body:block) => {
        #[test]
        fn $name() {
            let path = concat!(module_path!(), "::", stringify!($name));
            $crate::harness::run(path, &[$(($setting, $value)),*], || $body);
        }
    };
}

/// Runs `body` in this process if it is the child, else starts it.
pub fn run(path: &str, settings: &[(&str, &str)], body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let (_, name) = path.split_once("::").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads", "1"]);
    for (variable, _) in std::env::vars_os() {
        let variable = variable.to_string_lossy();
        if ["NCCL_", "CUDA_", "STAND_IN_", "BRIGADE_"].iter().any(|prefix| variable.starts_with(prefix)) {
            command.env_remove(&*variable);
        }
    }
    let mut libraries = "both";
    for (setting, value) in settings {
        match *setting {
            "libraries" => libraries = value,
            variable => {
                command.env(variable, value);
            }
        }
    }
    command.env(CHILD, "1").env("LD_LIBRARY_PATH", folder().join(libraries));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let (tell, told) = mpsc::channel();
    let waits = std::thread::spawn(move || tell.send(child.wait_with_output()));
    let output = told.recv_timeout(CHILD_ENDS).unwrap_or_else(|_| {
        let pid = rustix::process::Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        panic!("{name} has not ended within {CHILD_ENDS:?}");
    });
    waits.join().unwrap().unwrap();
    let output = output.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{}\n{out}\n{err}", output.status);
    // For people who run the parent with --nocapture.
    print!("{out}");
}

/// Compiles the stand-ins, once in a process. They stay in the target folder.
fn folder() -> &'static Path {
    const CUDA: &[&str] = &["cuda.c"];
    const NCCL: &[&str] = &["nccl.c", "nccl_work.c"];
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand_in");
        let libraries = [
            ("both", CUDA, "libcuda.so", ""),
            ("both", NCCL, "libnccl.so.2", ""),
            ("driver", CUDA, "libcuda.so", ""),
            ("without_split", CUDA, "libcuda.so", ""),
            ("without_split", NCCL, "libnccl.so.2", "-DncclCommSplit=notCommSplit"),
            ("none", &[], "", ""),
        ];
        for (kind, sources, library, define) in libraries {
            let folder = folder.join(kind);
            std::fs::create_dir_all(&folder).unwrap();
            if sources.is_empty() {
                continue;
            }
            let aside = folder.join(format!("{library}.{}", std::process::id()));
            let mut command = Command::new("cc");
            command.args(["-O1", "-shared", "-fPIC", "-pthread", "-Wall", "-Werror", "-o"]).arg(&aside);
            let stand_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_in");
            command.args(sources.iter().map(|source| stand_in.join(source)));
            command.args((!define.is_empty()).then_some(define)).arg("-ldl");
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            std::fs::rename(aside, folder.join(library)).unwrap();
        }
        folder
    })
}

/// One rank of a world of threads.
pub struct Rank {
    pub rank: usize,
    pub size: usize,
    pub context: Arc<Context>,
    pub stream: Stream,
    pub comm: Communicator,
    /// How long an operation may take to get into the stream.
    pub limit: Duration,
}

impl Rank {
    /// Puts an operation into the rank's stream.
    pub fn enqueue(&self, operation: &str, enqueue: impl FnOnce(&GroupCall<'_>)) -> Result<(), Error> {
        self.comm.enqueue(operation, &self.stream, self.limit, enqueue)
    }

    /// Puts an all-reduce into the rank's stream that adds in place.
    ///
    /// # Safety
    /// The buffer must live until the stream is done.
    pub unsafe fn all_reduce(&self, buffer: &mut [f32]) -> Result<(), Error> {
        let (address, count) = (at(buffer), buffer.len());
        // SAFETY: the caller vouches for it.
        let enqueue = |queue: &GroupCall<'_>| unsafe {
            queue.all_reduce(address, address, count, DType::F32, ReduceOp::Sum);
        };
        self.enqueue("all_reduce", enqueue)
    }
}

/// Runs `body` on `size` threads, each with its GPU and its communicator of the group "world".
pub fn world<R: Send>(size: usize, body: impl Fn(Rank) -> R + Sync) -> Vec<R> {
    let id = UniqueId::new(nccl().unwrap()).unwrap().to_bytes();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                let body = &body;
                scope.spawn(move || {
                    let context = Context::new(rank).unwrap();
                    let id = UniqueId::from_bytes(id);
                    let comm = Communicator::init(nccl().unwrap(), &context, "world", &id, rank, size, SOON)
                        .unwrap();
                    let stream = Stream::new(&context).unwrap();
                    body(Rank { rank, size, context, stream, comm, limit: SOON })
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The only rank of a world of one.
pub fn alone<R: Send>(body: impl Fn(Rank) -> R + Sync) -> R {
    world(1, body).pop().unwrap()
}

/// How often the stand-in of NCCL has seen something.
pub fn count(what: &str) -> i64 {
    ask(nccl().unwrap().path(), "stand_in_count", what)
}

/// How many of something the stand-in of the driver has.
pub fn live(what: &str) -> i64 {
    ask(driver().unwrap().path(), "stand_in_live", what)
}

fn ask(library: &str, function: &str, what: &str) -> i64 {
    let what = std::ffi::CString::new(what).unwrap();
    // SAFETY: the stand-ins have these functions, of this type.
    unsafe {
        let library = Library::new(library).unwrap();
        let function: libloading::Symbol<'_, unsafe extern "C" fn(*const std::ffi::c_char) -> i64> =
            library.get(function.as_bytes()).unwrap();
        function(what.as_ptr())
    }
}

/// A function of the stand-in of the driver.
///
/// # Safety
/// `F` must be its type.
pub unsafe fn in_driver<F: Copy>(function: &str) -> F {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    // SAFETY: the stand-in is loaded already, and stays.
    let library = LIBRARY.get_or_init(|| unsafe { Library::new(driver().unwrap().path()) }.unwrap());
    // SAFETY: the caller vouches for the type.
    *unsafe { library.get::<F>(function.as_bytes()) }.unwrap()
}

/// (made, finalized, destroyed, aborted) communicators; none of them misused.
pub fn ends() -> (i64, i64, i64, i64) {
    assert_eq!(count("misuse"), 0);
    (count("init"), count("finalize"), count("destroy"), count("abort"))
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < SOON, "{what} does not come true");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "\"{part}\" is not in: {text}");
    }
}

/// An address as the driver and NCCL take it.
pub fn at<T>(buffer: &mut [T]) -> u64 {
    buffer.as_mut_ptr() as u64
}
