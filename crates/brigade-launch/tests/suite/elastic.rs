//! Elastic worlds, all of their nodes on this machine: nodes leave, come back, come later, and do not fit.

use std::{
    fs,
    process::{Child, Command},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tempfile::TempDir;

use crate::{
    multi_node::port,
    process::{at_once, end, signal, wait_until},
    worlds::{launcher, runs},
};

/// Two to four nodes, which need not be waited for for long.
pub struct World {
    pub dir: TempDir,
    port: u16,
    script: String,
    bounds: &'static str,
}

/// Notes each start as `start world-size node:rank`, and runs until there is a file `done`; saves at once when it is told to.
const TRAIN: &str = r#"
    trap 'exit 75' TERM
    echo $$ > "$DIR/pid.$NODE"
    echo "$BRIGADE_RESTART_COUNT $WORLD_SIZE $NODE:$RANK $*" >> "$DIR/starts"
    until test -e "$DIR/done"; do sleep 0.02; done
"#;

impl World {
    pub fn new(bounds: &'static str) -> Self {
        Self { dir: TempDir::new().unwrap(), port: port(), script: TRAIN.to_owned(), bounds }
    }

    /// With this in place of saving at once.
    fn that_saves(trap: &str) -> Self {
        let script = TRAIN.replace("trap 'exit 75' TERM", trap);
        Self { script, ..Self::new("1:3") }
    }

    pub fn node(&self, node: usize) -> Command {
        let (min, max) = self.bounds.split_once(':').unwrap();
        let mut command = launcher(&self.script, 1, self.dir.path());
        command.env("TEST_NODE", format!("{node} {max} {} {min}", self.port)).env("NODE", node.to_string());
        command.env("BRIGADE_TOKEN", "a-secret-of-all-nodes").env("TEST_INIT", "30").env("TEST_HOST", "5");
        command.env("TEST_LAST_CALL", "1.5").env("TEST_RESIZE", "0.2");
        command
    }

    fn start(&self, nodes: impl IntoIterator<Item = usize>) -> Vec<Child> {
        nodes.into_iter().map(|node| self.node(node).spawn().unwrap()).collect()
    }

    /// The lines of a start, in order of nodes, without its number.
    fn ranks_of(&self, start: usize) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("starts")).unwrap_or_default();
        let number = format!("{start} ");
        let mut lines: Vec<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix(&number))
            .map(|line| line.trim().into())
            .collect();
        lines.sort();
        lines
    }

    pub fn until(&self, start: usize, ranks: &[&str]) {
        wait_until(&format!("start {start} has {ranks:?}"), || self.ranks_of(start) == ranks);
    }

    pub fn finish(&self, children: Vec<Child>) -> Vec<String> {
        fs::write(self.dir.path().join("done"), "").unwrap();
        let ended = children.into_iter().map(end).map(|(code, said)| {
            assert_eq!(code, Some(0), "{said}");
            said
        });
        ended.collect()
    }

    fn kill(&self, mut child: Child) {
        signal(&child, Signal::KILL);
        child.wait().unwrap();
    }
}

#[test]
fn a_world_starts_after_the_last_call_and_at_once_when_all_are_there() {
    let world = World::new("2:4");
    let children = world.start([0, 3]);
    // Numbered anew, without gaps.
    world.until(0, &["2 0:0", "2 3:1"]);
    world.finish(children);

    let world = World::new("1:2");
    let begin = Instant::now();
    let start = |node: usize| world.node(node).env("TEST_LAST_CALL", "600").spawn().unwrap();
    let children = vec![start(0), start(1)];
    world.until(0, &["2 0:0", "2 1:1"]);
    world.finish(children);
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn a_node_that_is_gone_is_left_behind_and_comes_back() {
    let world = World::new("2:3");
    let mut children = world.start([0, 1, 2]);
    world.until(0, &["3 0:0", "3 1:1", "3 2:2"]);
    let pid = fs::read_to_string(world.dir.path().join("pid.1")).unwrap();
    world.kill(children.remove(1));
    world.until(1, &["2 0:0", "2 2:1"]);
    wait_until("the rank of a killed launcher ends with it", || !runs(pid.trim()));
    children.extend(world.start([1]));
    world.until(2, &["3 0:0", "3 1:1", "3 2:2"]);
    let said = world.finish(children);
    for part in [
        "left: node Some(1)",
        "assembled: [0, 2] after [0, 1, 2]",
        "resizing: node 1 (",
        "assembled: [0, 1, 2] after [0, 2]",
    ] {
        assert!(said[0].contains(part), "{part}: {}", said[0]);
    }
    assert!(!said[0].contains("restart 1"), "neither is a failure: {}", said[0]);
}

#[test]
fn a_replacement_within_the_last_call_is_taken_at_once() {
    let world = World::new("1:2");
    let start = |node: usize| world.node(node).env("TEST_LAST_CALL", "25").spawn().unwrap();
    let mut children = vec![start(0), start(1)];
    world.until(0, &["2 0:0", "2 1:1"]);
    world.kill(children.remove(1));
    children.push(start(1));
    world.until(1, &["2 0:0", "2 1:1"]);
    world.finish(children);
}

#[test]
fn a_node_whose_launcher_gets_a_signal_leaves_alone() {
    let world = World::new("1:3");
    let mut children = world.start([0, 1, 2]);
    world.until(0, &["3 0:0", "3 1:1", "3 2:2"]);
    let leaver = children.remove(2);
    signal(&leaver, Signal::TERM);
    let (code, said) = end(leaver);
    assert_eq!(code, Some(75), "{said}");
    world.until(1, &["2 0:0", "2 1:1"]);
    // Node 0 has the run: its signal means all.
    signal(&children[0], Signal::TERM);
    for (code, said) in children.into_iter().map(end) {
        assert_eq!(code, Some(75), "{said}");
    }
}

#[test]
fn a_node_that_is_gone_before_it_has_saved_is_left_behind() {
    // While the others save as well, and when they have saved.
    at_once([("sleep 1000", false), ("test $NODE = 2 && sleep 1000", true)], |(slow, others_save)| {
        let world = World::that_saves(&format!(r#"trap 'touch "$DIR/saving.$NODE"; {slow}; exit 75' TERM"#));
        let mut children = world.start([0, 1, 2]);
        world.until(0, &["3 0:0", "3 1:1", "3 2:2"]);
        let path = |name: &str, node: usize| world.dir.path().join(format!("{name}.{node}"));
        let pids = [0, 1].map(|node| fs::read_to_string(path("pid", node)).unwrap());
        let leaver = children.remove(2);
        signal(&leaver, Signal::TERM);
        wait_until("all save", || (0..3).all(|node| path("saving", node).exists()));
        if others_save {
            wait_until("the others have saved", || !pids.iter().any(|pid| runs(pid.trim())));
        }
        world.kill(leaver);
        world.until(1, &["2 0:0", "2 1:1"]);
        for said in world.finish(children) {
            assert_eq!(said.matches("left: node Some(2): ").count(), 1, "{said}");
            assert!(!said.contains("restart 1"), "it is not a failure: {said}");
        }
    });
}

#[test]
fn a_node_leaves_alone_even_if_its_ranks_do_not_save() {
    // They say so, know nothing of it, or do not hear it.
    at_once(["trap 'test $NODE = 2 && exit 1; exit 75' TERM", "trap - TERM", "trap '' TERM"], |trap| {
        let world = World::that_saves(trap);
        let start = |node: usize| world.node(node).env("TEST_PREEMPTION_GRACE", "1").spawn().unwrap();
        let mut children: Vec<Child> = [0, 1, 2].into_iter().map(start).collect();
        world.until(0, &["3 0:0", "3 1:1", "3 2:2"]);
        let leaver = children.remove(2);
        signal(&leaver, Signal::TERM);
        let (code, said) = end(leaver);
        assert_eq!(code, Some(75), "{trap}: {said}");
        world.until(1, &["2 0:0", "2 1:1"]);
        for said in world.finish(children) {
            assert!(said.contains("left: node Some(2): its launcher received a signal"), "{trap}: {said}");
            assert!(!said.contains("restart 1"), "{trap}: {said}");
        }
    });
}

#[test]
fn without_node_0_the_others_end_to_be_started_again() {
    let world = World::new("1:3");
    let start = |node: usize| world.node(node).env("TEST_INIT", "2").spawn().unwrap();
    let mut children: Vec<Child> = [0, 1, 2].into_iter().map(start).collect();
    world.until(0, &["3 0:0", "3 1:1", "3 2:2"]);
    world.kill(children.remove(0));
    for (code, said) in children.into_iter().map(end) {
        assert_eq!(code, Some(75), "{said}");
        assert!(
            said.contains("outcome: node 0 (") && said.contains("the run continues from what it has saved"),
            "{said}"
        );
    }
}

#[test]
fn node_0_may_come_back() {
    let world = World::new("2:3");
    let mut children = world.start([0, 1, 2]);
    world.until(0, &["3 0:0", "3 1:1", "3 2:2"]);
    world.kill(children.remove(0));
    children.extend(world.start([0]));
    world.until(1, &["3 0:0", "3 1:1", "3 2:2"]);
    world.finish(children);
}

#[test]
fn too_few_nodes_are_named_at_the_first_start_and_after_a_loss() {
    let world = World::new("2:3");
    let (code, said) = end(world.node(0).env("TEST_INIT", "1").spawn().unwrap());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("only nodes [0] are there, and --nnodes 2:3 needs 2"), "{said}");

    let start = |node: usize| world.node(node).env("TEST_INIT", "2").spawn().unwrap();
    let mut children = vec![start(0), start(1)];
    world.until(0, &["2 0:0", "2 1:1"]);
    world.kill(children.remove(1));
    let (code, said) = end(children.remove(0));
    assert_eq!(code, Some(75), "{said}");
    assert!(said.contains("outcome: node 1 (") && said.contains("only nodes [0] are there"), "{said}");
}

#[test]
fn who_does_not_fit_is_refused_and_the_run_is_not_disturbed() {
    let world = World::new("2:3");
    let children = world.start([0, 1]);
    world.until(0, &["2 0:0", "2 1:1"]);
    let refused = |command: &mut Command| {
        let (code, said) = end(command.spawn().unwrap());
        assert_eq!(code, Some(2), "{said}");
        said
    };
    let cases: [(&str, &str, &str); 4] = [
        ("BRIGADE_TOKEN", "another-secret-than-theirs", "node 0 has a different token"),
        ("TEST_NPROC", "2", "--nproc-per-node is 2 there, and 1 on node 0"),
        ("TEST_CONFIGURATION", "seed = 8", "its configuration differs from node 0's: `seed = 8` there"),
        ("TEST_NODE", "", "there is already a node 1, on "),
    ];
    for (name, value, part) in cases {
        let (mut command, twice) = (world.node(2), format!("1 3 {} 2", world.port));
        let said = refused(command.env(name, if name == "TEST_NODE" { &twice } else { value }));
        assert!(said.contains(part), "{name}: {said}");
    }
    assert_eq!(world.ranks_of(1), Vec::<String>::new());
    world.finish(children);
}

/// As many nodes as divide eight samples, say.
#[test]
fn the_nearest_number_of_nodes_that_works_is_used() {
    let world = World::new("1:4");
    let start = |node: usize| world.node(node).env("TEST_DIVIDES", "8").spawn().unwrap();
    let mut children: Vec<Child> = [0, 1, 2].into_iter().map(start).collect();
    world.until(0, &["2 0:0 --nodes 2", "2 1:1 --nodes 2"]);
    children.push(start(3));
    world.until(1, &["4 0:0 --nodes 4", "4 1:1 --nodes 4", "4 2:2 --nodes 4", "4 3:3 --nodes 4"]);
    world.kill(children.remove(2));
    world.until(2, &["2 0:0 --nodes 2", "2 1:1 --nodes 2"]);
    let said = world.finish(children);
    assert!(said[0].contains("3 nodes are there, of which 2 are used: 3 does not divide 8"), "{}", said[0]);
}

#[test]
fn failures_count_and_nodes_stay() {
    let script = format!("test $BRIGADE_RESTART_COUNT = 0 -a $NODE = 1 && exit 3; {TRAIN}");
    let world = World { script, ..World::new("1:2") };
    let start = |node: usize| world.node(node).env("TEST_RESTARTS", "1").spawn().unwrap();
    let children = vec![start(0), start(1)];
    world.until(1, &["2 0:0", "2 1:1"]);
    let said = world.finish(children);
    assert!(said[0].contains("restart 1 of 1: rank 1 failed: exit code 3"), "{}", said[0]);
}

#[test]
fn a_signal_to_one_node_between_two_starts_takes_away_that_node_alone() {
    let script = format!("test $BRIGADE_RESTART_COUNT = 0 -a $NODE = 1 && exit 3; {TRAIN}");
    let world = World { script, ..World::new("1:3") };
    let start = |node: usize| {
        let mut command = world.node(node);
        command.env("TEST_RESTARTS", "1").env("TEST_PAUSE", "4").spawn().unwrap()
    };
    let mut children = vec![start(0), start(1), start(2)];
    // Node 1 fails at once and writes nothing; the others are ended, and all wait for the next start.
    world.until(0, &["3 0:0", "3 2:2"]);
    let pid = fs::read_to_string(world.dir.path().join("pid.0")).unwrap();
    wait_until("the ranks have ended", || !runs(pid.trim()));
    std::thread::sleep(Duration::from_secs(1));
    let leaver = children.remove(2);
    signal(&leaver, Signal::TERM);
    let (code, said) = end(leaver);
    assert_eq!(code, Some(75), "{said}");
    world.until(2, &["2 0:0", "2 1:1"]);
    let said = world.finish(children);
    assert!(said[0].contains("left: node Some(2): its launcher received SIGTERM"), "{}", said[0]);
}
