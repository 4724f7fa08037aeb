//! `brigade report`

use std::fs;

use crate::place::Place;
use crate::runs::files;

#[test]
fn a_run_becomes_a_page_and_nothing_else_changes() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 2 --out a --checkpoint-every 4"));
    place.succeed(&mut place.train("--nproc-per-node 2 --pp 2 --steps 6 --out b"));
    let before = files(&place.path("a"));
    let done = place.succeed(&mut place.brigade("report a --compare b"));
    assert_eq!(done.out, "a/report.html\n");
    let mut after = files(&place.path("a"));
    let page = String::from_utf8(after.remove("report.html").unwrap()).unwrap();
    assert!(after == before);
    for text in [
        "started on 2 ranks, mesh pp 1 x dp 2",
        "checkpoint of step 4",
        "finished after step 10",
        "Differences to b",
        "<code>mesh.pp</code>",
        "\"ranks\"",
        "activations inside blocks",
        "own time",
    ] {
        assert!(page.contains(text), "{text}");
    }
    // Again, over its own page and into another file.
    place.succeed(&mut place.brigade("report a"));
    place.succeed(&mut place.brigade("report a --out other.html"));
    assert!(place.read("other.html") == place.read("a/report.html"));
    place.succeed(&mut place.brigade("report a --out other.html"));
}

#[test]
fn what_cannot_be_shown_is_said_in_one_line() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 2 --out a"));
    place.succeed(&mut place.train("--nproc-per-node 1 --steps 2 --out b --set model.width=32"));
    fs::create_dir(place.path("empty")).unwrap();
    fs::write(place.path("mine.html"), "<!doctype html>\n<title>Mine</title>\n").unwrap();
    for (line, said) in [
        ("nowhere", "nowhere is not a folder"),
        ("empty", "empty has no metrics.jsonl"),
        (
            "a --compare b",
            "b cannot be compared with a: it trained a different model, with model.width = 32, not 16",
        ),
        ("a --compare empty", "--compare: empty has no metrics.jsonl"),
        (
            "a --out a/metrics.jsonl",
            "--out a/metrics.jsonl exists and is not a page that brigade report wrote; give another file",
        ),
        ("a --out mine.html", "--out mine.html exists and is not a page that brigade report wrote"),
        ("a --out nowhere/page.html", "--out nowhere/page.html: cannot write it"),
    ] {
        let done = place.run(&mut place.brigade(&format!("report {line}")));
        assert_ne!(done.code, Some(0), "{line}");
        assert!(done.err.contains(said) && done.err.lines().count() == 1, "{line}: {}", done.err);
    }
    assert_eq!(place.metrics("a").len(), 2);
}

#[test]
fn what_makes_a_run_slow_is_printed_for_programs() {
    let place = Place::new();
    let saves = "--nproc-per-node 1 --checkpoint-every 1 --set checkpoint.asynchronous=false --set train.validate_every=0";
    place.succeed(&mut place.train(&format!("{saves} --out a")));
    let before = files(&place.path("a"));
    let found = place.succeed(&mut place.brigade("report a --json")).out;
    let found: serde_json::Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found[0]["cause"], "checkpoints", "{found}");
    assert!(found[0]["gain_percent"].as_f64().unwrap() > 4.0, "{found}");
    assert!(found[0]["sentence"].as_str().unwrap().contains("`checkpoint.every"), "{found}");
    assert!(files(&place.path("a")) == before, "nothing is written");
    place.succeed(&mut place.train("--nproc-per-node 1 --set train.steps=2 --out b"));
    let few = place.succeed(&mut place.brigade("report b --json"));
    assert_eq!(few.out.trim(), "[]");
    assert!(few.err.contains("b has") && few.err.contains("too few to say what to change"), "{}", few.err);
}
