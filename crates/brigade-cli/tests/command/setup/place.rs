//! A folder with text to train on, and the command in it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longer than any run here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(150);

/// The smallest model and run that have everything: two layers, four micro-batches of two a step.
const SETTINGS: &str = r#"
model = { sequence_length = 16, width = 16, layers = 2, heads = 2 }
data = { tokenizer = "bytes" }
train = { steps = 10, micro_batch_size = 2, global_batch_size = 8, validate_every = 4, validation_samples = 6 }
schedule = { warmup_steps = 2 }
"#;

pub struct Place {
    folder: TempDir,
}

impl Place {
    /// A folder with `tiny.toml`, and `text/` with some documents.
    pub fn new() -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap() };
        fs::write(place.path("tiny.toml"), SETTINGS).unwrap();
        fs::create_dir(place.path("text")).unwrap();
        for document in 0..24 {
            let line = format!("fn number_{document}() -> usize {{ {} }}\n", document * document);
            fs::write(place.path(&format!("text/{document:02}.rs")), line.repeat(2 + document % 5)).unwrap();
        }
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        let path = self.path(name);
        fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    pub fn text(&self, name: &str) -> String {
        String::from_utf8(self.read(name)).unwrap()
    }

    /// `metrics.jsonl` of a run.
    pub fn metrics(&self, run: &str) -> Vec<serde_json::Value> {
        let text = self.text(&format!("{run}/metrics.jsonl"));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The command with the words of `line` as its arguments, in this folder, with nothing in its
    /// environment that could place it in a world.
    pub fn brigade(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_brigade"));
        command.args(line.split_whitespace()).current_dir(self.folder.path()).env_clear();
        for name in ["PATH", "HOME", "CARGO_HOME", "RUSTUP_HOME", "TMPDIR", "LD_LIBRARY_PATH"] {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        command.env("BRIGADE_CACHE_DIR", self.path("cache")).env("HF_HUB_OFFLINE", "1");
        command.env("HF_HOME", self.path("hub")).stdin(Stdio::null());
        command
    }

    /// `brigade train` on the tiny model and text, with further arguments.
    pub fn train(&self, line: &str) -> Command {
        self.brigade(&format!("train --config tiny.toml --data text {line}"))
    }

    /// Starts a command whose output is kept in files.
    pub fn start(&self, command: &mut Command) -> Running {
        let [out, err] = ["out", "err"].map(|name| {
            let file = tempfile::Builder::new().prefix(name).tempfile_in(self.folder.path()).unwrap();
            file.keep().unwrap().1
        });
        let stream = |path: &Path| Stdio::from(File::create(path).unwrap());
        let child = command.stdout(stream(&out)).stderr(stream(&err)).spawn().unwrap();
        Running { child, out, err }
    }

    pub fn run(&self, command: &mut Command) -> Done {
        self.start(command).wait()
    }

    /// Runs a command that must succeed.
    pub fn succeed(&self, command: &mut Command) -> Done {
        let done = self.run(command);
        assert_eq!(done.code, Some(0), "{command:?}: {}", done.err);
        done
    }
}

/// A command that may still run; it is killed when dropped.
pub struct Running {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

pub struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Running {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to standard output so far.
    pub fn said(&self) -> String {
        fs::read_to_string(&self.out).unwrap()
    }

    /// What it has written to standard error so far.
    pub fn complained(&self) -> String {
        fs::read_to_string(&self.err).unwrap()
    }

    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub fn wait(mut self) -> Done {
        let ended = |running: &mut Self| running.child.try_wait().unwrap();
        let status: ExitStatus = self.until("the command has ended", ended);
        let read = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        Done { code: status.code(), out: read(&self.out), err: read(&self.err) }
    }

    /// Asks again and again until there is an answer.
    pub fn until<T>(&mut self, what: &str, mut ask: impl FnMut(&mut Self) -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(answer) = ask(self) {
                return answer;
            }
            let said = || fs::read_to_string(&self.err).unwrap_or_default();
            assert!(begin.elapsed() < DEADLINE, "{what}: not after {DEADLINE:?}; {}", said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
