//! `brigade scaling`

use crate::place::Place;

#[test]
fn runs_on_more_ranks_are_compared() {
    let place = Place::new();
    for ranks in [1, 2] {
        place.succeed(&mut place.train(&format!("--nproc-per-node {ranks} --out {ranks}")));
    }
    let text = place.succeed(&mut place.brigade("scaling 2 1")).out;
    for said in ["strong scaling", "speed-up  efficiency", "1.00      100.0%", "Amdahl's law: "] {
        assert!(text.contains(said), "{said}: {text}");
    }
    for (line, said) in [
        ("scaling 1", "all that were given ran on 1"),
        ("scaling 1 text", "text has no metrics.jsonl"),
        ("scaling 1 nowhere", "nowhere is not a folder"),
    ] {
        let done = place.run(&mut place.brigade(line));
        assert_eq!((done.code, done.err.lines().count()), (Some(2), 1), "{}", done.err);
        assert!(done.err.contains(said), "{line}: {}", done.err);
    }
}
