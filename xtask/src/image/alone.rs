//! An image's program, started as its configuration says and with nothing else in sight.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

/// What the program says to a flag that it does not know: it is a program of tests.
const UNKNOWN_FLAG: i32 = 101;

/// What starts containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runner {
    /// A runtime of the OCI's.
    Crun,
    /// A sandbox (Debian: `bubblewrap`).
    Bwrap,
}

/// An unpacked image, in the folder `rootfs` of a bundle.
struct Container<'a> {
    bundle: &'a Path,
    /// The words that it starts with.
    entry: Vec<String>,
    /// `NAME=VALUE`
    env: Vec<String>,
    folder: String,
    user: u32,
    group: u32,
}

/// Unpacks a layer and starts its program as the image's configuration says, by `crun` or else by `bwrap`, where one of them may do so.
pub fn runs_alone(layer: &[u8], config: &Value) {
    let bundle = tempfile::tempdir().unwrap();
    tar::Archive::new(layer).unpack(bundle.path().join("rootfs")).unwrap();
    let container = Container::new(bundle.path(), config);
    let Some(runner) = [Runner::Crun, Runner::Bwrap].into_iter().find(|runner| container.may_use(*runner))
    else {
        eprintln!("neither crun nor bwrap (Debian: bubblewrap) runs here: the image is not started");
        return;
    };
    eprintln!("the image is started by {runner:?}");
    let listed = container.run(runner, "--list");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    assert!(String::from_utf8_lossy(&listed.stdout).contains("an_image_is_the_same_each_time"));
    let refused = container.run(runner, "--no-such-flag");
    assert_eq!(refused.status.code(), Some(UNKNOWN_FLAG), "{}", String::from_utf8_lossy(&refused.stderr));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("no-such-flag"));
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

impl<'a> Container<'a> {
    fn new(bundle: &'a Path, config: &Value) -> Self {
        let (user, group) = config["User"].as_str().unwrap().split_once(':').unwrap();
        Self {
            bundle,
            entry: texts(&config["Entrypoint"]),
            env: texts(&config["Env"]),
            folder: config["WorkingDir"].as_str().unwrap().to_owned(),
            user: user.parse().unwrap(),
            group: group.parse().unwrap(),
        }
    }

    fn may_use(&self, runner: Runner) -> bool {
        let succeeds = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        match runner {
            Runner::Crun if succeeds(Command::new("crun").arg("--version")) => {
                let output = self.run(runner, "--list");
                if !output.status.success() {
                    // It may lack the right to start containers; if it is the image, the other one says so.
                    eprintln!("crun: {}", String::from_utf8_lossy(&output.stderr));
                }
                output.status.success()
            }
            Runner::Crun => false,
            Runner::Bwrap => succeeds(Command::new("bwrap").args(["--ro-bind", "/", "/", "true"])),
        }
    }

    /// Starts the program with one flag.
    fn run(&self, runner: Runner, flag: &str) -> Output {
        match runner {
            Runner::Crun => self.by_crun(flag),
            Runner::Bwrap => self.by_bwrap(flag),
        }
        .output()
        .unwrap()
    }

    fn by_bwrap(&self, flag: &str) -> Command {
        let mut bwrap = Command::new("bwrap");
        bwrap.arg("--bind").arg(self.bundle.join("rootfs")).args(["/", "--unshare-all", "--clearenv"]);
        bwrap.args(["--uid", &self.user.to_string(), "--gid", &self.group.to_string()]);
        for (name, value) in self.env.iter().filter_map(|variable| variable.split_once('=')) {
            bwrap.args(["--setenv", name, value]);
        }
        bwrap.args(["--chdir", &self.folder]).args(&self.entry).arg(flag);
        bwrap
    }

    fn by_crun(&self, flag: &str) -> Command {
        let args = [self.entry.as_slice(), &[flag.to_owned()]].concat();
        let namespaces = ["pid", "network", "ipc", "uts", "mount"].map(|kind| json!({ "type": kind }));
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "user": { "uid": self.user, "gid": self.group },
                "args": args, "env": self.env, "cwd": self.folder, "noNewPrivileges": true,
            },
            "root": { "path": "rootfs" },
            "mounts": [
                { "destination": "/proc", "type": "proc", "source": "proc" },
                { "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"] },
            ],
            "linux": { "namespaces": namespaces },
        });
        std::fs::write(self.bundle.join("config.json"), config.to_string()).unwrap();
        let mut crun = Command::new("crun");
        crun.arg("--root").arg(self.bundle.join("state")).arg("--cgroup-manager=disabled");
        crun.args(["run", "--bundle"]).arg(self.bundle).arg(format!("brigade-{}", std::process::id()));
        crun
    }
}
