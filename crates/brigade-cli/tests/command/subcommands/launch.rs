//! `brigade launch`

use crate::place::{Done, Place};

fn launch(place: &Place, line: &str, script: &str) -> Done {
    place.run(place.brigade(&format!("launch {line} --")).args(["sh", "-c", script]))
}

#[test]
fn ranks_find_their_place_in_the_environment() {
    let place = Place::new();
    let script = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR; test -n \"$MASTER_PORT\"";
    let done = launch(&place, "--nproc-per-node 3 --log-dir logs", script);
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), "0 0 3 3 0 127.0.0.1\n", ""));
    assert_eq!(place.text("logs/rank-2.log"), "2 2 3 3 0 127.0.0.1\n");
    let done = launch(&place, "", "echo $RANK $WORLD_SIZE");
    assert_eq!((done.code, done.out.as_str()), (Some(0), "0 1\n"));
    let done = launch(&place, "--nproc-per-node 2 --tee", "echo here");
    assert!(done.out.contains("[rank 1] here"), "{}", done.out);
}

#[test]
fn a_rank_that_fails_is_named_with_its_last_words() {
    let place = Place::new();
    let done =
        launch(&place, "--nproc-per-node 2 --log-dir logs", "test $RANK = 0 && sleep 30; echo oh no; exit 3");
    assert_eq!(done.code, Some(1));
    assert!(done.err.starts_with("brigade: rank 1 failed: exit code 3 after "), "{}", done.err);
    assert!(done.err.contains("oh no"), "{}", done.err);
    let done = launch(&place, "--nproc-per-node 2 --log-dir logs", "test $RANK = 0 && sleep 30; kill -9 $$");
    assert_eq!(done.code, Some(1));
    assert!(done.err.starts_with("brigade: rank 1: killed by SIGKILL (9) after "), "{}", done.err);
}

#[test]
fn logs_without_a_folder_of_their_own_stay_only_after_a_failure() {
    let place = Place::new();
    std::fs::create_dir(place.path("tmp")).unwrap();
    let left = || std::fs::read_dir(place.path("tmp")).unwrap().count();
    for (script, code, folders) in [("true", 0, 0), ("exit 3", 1, 1)] {
        let mut command = place.brigade("launch --");
        let done = place.run(command.args(["sh", "-c", script]).env("TMPDIR", place.path("tmp")));
        assert_eq!((done.code, left()), (Some(code), folders), "{}", done.err);
    }
}

/// However a world is asked for, one that is too large is refused with the same words, before anything starts.
#[test]
fn worlds_that_are_too_large() {
    let place = Place::new();
    let nodes = "--nnodes 2 --node-rank 0 --rdzv-endpoint 127.0.0.1:29400";
    for line in [
        "launch --nproc-per-node 1025 -- true".to_owned(),
        format!("launch --nproc-per-node 600 {nodes} -- true"),
        format!("train --nproc-per-node 600 {nodes} --dry-run"),
        "train --dp 600 --pp 2 --dry-run".into(),
        "train --dp 600 --pp 2".into(),
        "doctor --world-size 1025".into(),
    ] {
        let done = place.run(place.brigade(&line).env("BRIGADE_TOKEN", "0123456789abcdef"));
        assert_eq!(done.code, Some(2), "{line}: {}", done.err);
        assert!(done.err.contains("a world has 1 to 1024 ranks"), "{line}: {}", done.err);
    }
}

#[test]
fn wrong_usage() {
    let place = Place::new();
    let case = |line: &str, code: i32, said: &str| {
        let done = place.run(&mut place.brigade(&format!("launch {line}")));
        assert_eq!(done.code, Some(code), "{line}: {}", done.err);
        assert!(done.err.contains(said), "{line}: {}", done.err);
    };
    case("--nproc-per-node 2", 2, "<PROGRAM ARGS>");
    case("--nproc-per-node 0 -- true", 2, "1 to 1024");
    case("--nnodes 2 --node-rank 0 --rdzv-endpoint 127.0.0.1:29400 -- true", 2, "BRIGADE_TOKEN is not set");
    case("--nnodes 2 -- true", 2, "--node-rank");
    case("-- ./no-such-program", 1, "./no-such-program");
    let mut rank = place.brigade("launch -- true");
    let done = place.run(rank.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]));
    assert_eq!(done.code, Some(2), "{}", done.err);
    assert!(done.err.contains("is already a rank"), "{}", done.err);
}
