//! A rank that is cut off: its host is gone, and no connection says so. It needs network namespaces, which only root may
//! make; without them these tests say so and pass.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::processes::{STEP_SECONDS, begun, spawn};

/// Two network namespaces with a cable between them, which are gone when the test ends.
struct Cable {
    near: String,
    far: String,
}

impl Cable {
    /// A cable with the addresses `10.<number>.0.1` and `.2`.
    fn lay(number: u8) -> Option<Self> {
        let name = |end| format!("brigade-{}-{number}-{end}", std::process::id());
        let cable = Self { near: name("near"), far: name("far") };
        let Self { near, far } = &cable;
        let laid = ip(&["netns", "add", near])
            && ip(&["netns", "add", far])
            && ip(&["-n", near, "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", far])
            && cable.end(near, "near", &format!("10.{number}.0.1/24"))
            && cable.end(far, "far", &format!("10.{number}.0.2/24"));
        if !laid {
            println!("skipped: this machine allows no network namespaces");
        }
        laid.then_some(cable)
    }

    fn end(&self, namespace: &str, link: &str, address: &str) -> bool {
        ip(&["-n", namespace, "addr", "add", address, "dev", link])
            && ip(&["-n", namespace, "link", "set", link, "up"])
            && ip(&["-n", namespace, "link", "set", "lo", "up"])
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.near]);
        ip(&["netns", "del", &self.far]);
    }
}

fn ip(arguments: &[&str]) -> bool {
    let mut command = Command::new("ip");
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Three ranks work, the last one behind a cable, until `cut` does something to it. The others name it, and it names rank 0,
/// within the deadline of an operation.
fn a_rank_that_is_cut_off_is_named(number: u8, cut: impl Fn(&Cable) -> bool) {
    let Some(cable) = Cable::lay(number) else { return };
    let role = |rank| format!("reduce {rank} 3 10.{number}.0.1:29400 auto");
    let near = |rank| spawn(Some(&cable.near), &role(rank));
    let mut ranks = begun(vec![near(0), near(1), spawn(Some(&cable.far), &role(2))]);
    std::thread::sleep(Duration::from_millis(100));
    assert!(cut(&cable));
    let start = Instant::now();
    for (rank, named) in [(0, 2), (1, 2), (2, 0)] {
        let line = ranks[rank].line();
        // How soon a connection gives up depends on its timers; the deadline of an operation, or where one direction
        // still works the end of the other rank, may come first.
        let words = ["died", "does not answer", "has left"].map(|word| format!("rank {named} {word}"));
        assert!(words.iter().any(|words| line.contains(words)), "rank {rank} says: {line}");
    }
    assert!(start.elapsed() < Duration::from_secs(STEP_SECONDS + 4), "took {:?}", start.elapsed());
}

#[test]
fn a_pulled_cable() {
    a_rank_that_is_cut_off_is_named(77, |cable| ip(&["-n", &cable.far, "link", "set", "far", "down"]));
}

#[test]
fn a_host_that_can_only_hear() {
    a_rank_that_is_cut_off_is_named(78, |cable| {
        ip(&["-n", &cable.far, "route", "add", "blackhole", "10.78.0.1/32"])
    });
}

#[test]
fn a_host_that_can_only_talk() {
    a_rank_that_is_cut_off_is_named(79, |cable| {
        ip(&["-n", &cable.near, "route", "add", "blackhole", "10.79.0.2/32"])
    });
}
