//! Compiles the stand-ins, runs a test in a process of its own, and runs ranks as threads.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, Instant, SystemTime};

use brigade_comm::{DType, ReduceOp};
use brigade_cuda::{Communicator, Context, Error, GroupCall, Stream, UniqueId, driver, nccl};
use libloading::Library;

/// Long enough for a busy machine. No test that passes waits for so long.
pub const SOON: Duration = Duration::from_secs(30);

const CHILD: &str = "STAND_IN_CHILD";
const CHILD_TIMEOUT: Duration = Duration::from_secs(150);

/// A test that runs in a process of its own. Its settings are environment variables of the stand-ins, and `libraries`, which
/// selects what the loader finds: `both` (the default), `driver`, `none` or `without_split`.
macro_rules! stand_in_test {
    ($name:ident, [$($setting:literal = $value:expr),*], $body:block) => {
        #[test]
        fn $name() {
            let path = concat!(module_path!(), "::", stringify!($name));
            $crate::harness::run(path, &[$(($setting, $value)),*], || $body);
        }
    };
}

/// Runs `body` if this process is the child; otherwise starts the child and waits for it.
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
    command.env(CHILD, "1").env("LD_LIBRARY_PATH", compiled().join(libraries));
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let id = child.id();
    let (sender, receiver) = mpsc::channel();
    let waiter = std::thread::spawn(move || sender.send(child.wait_with_output()));
    let output = receiver.recv_timeout(CHILD_TIMEOUT).unwrap_or_else(|_| {
        let pid = rustix::process::Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        panic!("{name} has not finished within {CHILD_TIMEOUT:?}");
    });
    waiter.join().unwrap().unwrap();
    let output = output.unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{}\n{out}\n{err}", output.status);
    // Shown if the parent runs with --nocapture.
    print!("{out}");
}

/// The folder of the compiled stand-ins, a subfolder for each value of `libraries`. They stay in the target folder, and are
/// compiled again if their sources or this program are newer.
fn compiled() -> &'static Path {
    const CUDA: &[&str] = &["cuda.c"];
    const NCCL: &[&str] = &["nccl.c", "nccl_work.c"];
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand_ins");
        let newest = sources().map(|path| modified(&path).unwrap()).max().unwrap();
        std::fs::create_dir_all(folder.join("none")).unwrap();
        for (kind, sources, library, flags) in [
            ("both", CUDA, "libcuda.so", None),
            ("both", NCCL, "libnccl.so.2", None),
            ("driver", CUDA, "libcuda.so", None),
            ("without_split", CUDA, "libcuda.so", None),
            ("without_split", NCCL, "libnccl.so.2", Some("-DncclCommSplit=notCommSplit")),
        ] {
            let library = folder.join(kind).join(library);
            if modified(&library).is_none_or(|compiled| compiled <= newest) {
                compile(&library, sources, flags);
            }
        }
        folder
    })
}

const STAND_INS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stand_ins");

/// Everything that the compiled stand-ins depend on.
fn sources() -> impl Iterator<Item = PathBuf> {
    let files = std::fs::read_dir(STAND_INS).unwrap().map(|entry| entry.unwrap().path());
    files.chain([std::env::current_exe().unwrap()])
}

fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

/// Compiles a library. Several processes may do so at once: each renames its own result into place.
fn compile(library: &Path, sources: &[&str], flags: Option<&str>) {
    std::fs::create_dir_all(library.parent().unwrap()).unwrap();
    let aside = library.with_extension(std::process::id().to_string());
    let mut command = Command::new("cc");
    command.args(["-O1", "-shared", "-fPIC", "-pthread", "-Wall", "-Werror", "-o"]).arg(&aside);
    command.args(sources.iter().map(|source| Path::new(STAND_INS).join(source)));
    let output = command.args(flags).arg("-ldl").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::rename(aside, library).unwrap();
}

/// One rank of a world of threads.
pub struct TestRank {
    pub rank: usize,
    pub size: usize,
    pub context: Arc<Context>,
    pub stream: Stream,
    pub comm: Communicator,
    /// How long it may take to enqueue an operation.
    pub timeout: Duration,
}

impl TestRank {
    /// Enqueues an operation on the rank's stream.
    pub fn enqueue(&self, operation: &str, enqueue: impl FnOnce(&GroupCall<'_>)) -> Result<(), Error> {
        self.comm.enqueue(operation, &self.stream, self.timeout, enqueue)
    }

    /// Enqueues an in-place all-reduce on the rank's stream.
    ///
    /// # Safety
    /// The buffer must live until the stream is done.
    pub unsafe fn all_reduce(&self, buffer: &mut [f32]) -> Result<(), Error> {
        let (address, count) = (address(buffer), buffer.len());
        // SAFETY: the caller vouches for it.
        let enqueue = |call: &GroupCall<'_>| unsafe {
            call.all_reduce(address, address, count, DType::F32, ReduceOp::Sum);
        };
        self.enqueue("all_reduce", enqueue)
    }
}

/// Runs `body` on `size` threads, each a rank with its own GPU and a communicator of the group "world".
pub fn world<R: Send>(size: usize, body: impl Fn(TestRank) -> R + Sync) -> Vec<R> {
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
                    body(TestRank { rank, size, context, stream, comm, timeout: SOON })
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The only rank of a world of one.
pub fn alone<R: Send>(body: impl Fn(TestRank) -> R + Sync) -> R {
    world(1, body).pop().unwrap()
}

/// How often the stand-in for NCCL has seen something.
pub fn count(what: &str) -> i64 {
    ask(nccl().unwrap().path(), "stand_in_count", what)
}

/// How many objects of a kind the stand-in for the driver has.
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

/// A function of the stand-in for the driver.
///
/// # Safety
/// `F` must be its type.
pub unsafe fn in_driver<F: Copy>(function: &str) -> F {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    // SAFETY: the stand-in is loaded already, and stays loaded.
    let library = LIBRARY.get_or_init(|| unsafe { Library::new(driver().unwrap().path()) }.unwrap());
    // SAFETY: the caller vouches for the type.
    *unsafe { library.get::<F>(function.as_bytes()) }.unwrap()
}

/// How many communicators were made, finalized, destroyed and aborted. Fails if any was misused.
pub fn communicator_counts() -> (i64, i64, i64, i64) {
    assert_eq!(count("misuse"), 0);
    (count("init"), count("finalize"), count("destroy"), count("abort"))
}

/// Waits until `condition` holds.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < SOON, "{what} has not happened within {SOON:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn assert_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "\"{part}\" is not in: {text}");
    }
}

/// The address of a buffer, for the driver and NCCL.
pub fn address<T>(buffer: &mut [T]) -> u64 {
    buffer.as_mut_ptr() as u64
}
