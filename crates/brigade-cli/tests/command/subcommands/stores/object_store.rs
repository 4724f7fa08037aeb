//! Checkpoints in an object store: here the client's own store of local files.

use crate::place::Place;
use crate::runs::same_end;

#[test]
fn a_run_goes_on_from_an_object_store() {
    let place = Place::new();
    let url = format!("file://{}", place.path("bucket").display());
    let line = format!("--checkpoint-every 4 --set checkpoint.dir={url}");
    place.succeed(&mut place.train("--nproc-per-node 1 --out whole"));
    let constant = "--set schedule.name=constant --set train.validate_every=2";
    place
        .succeed(&mut place.train(&format!("{line} {constant} --nproc-per-node 2 --pp 2 --steps 6 --out a")));
    assert!(!place.path("a/checkpoints").exists());
    let listed = place.succeed(&mut place.brigade(&format!("checkpoint list {url}")));
    assert!(listed.out.starts_with("step 6 ") && listed.out.contains("step 4 "), "{}", listed.out);
    place.succeed(&mut place.brigade(&format!("checkpoint verify {url}")));
    let resumed = place
        .succeed(&mut place.brigade("train --resume a --steps 10 --nproc-per-node 2 --dp 2 --pp 1 --zero 3"));
    assert!(resumed.err.contains("resuming from the checkpoint of step 6"), "{}", resumed.err);
    place.succeed(&mut place.train(&format!("{constant} --nproc-per-node 1 --out constant")));
    same_end(&place, "a", "constant");

    // A new run does not replace what is there, unless it is told to.
    let refused = place.run(&mut place.train(&format!("{line} --nproc-per-node 1 --out b")));
    assert!(
        refused.code != Some(0) && refused.err.contains("holds checkpoints of an earlier run"),
        "{}",
        refused.err
    );
    place.succeed(&mut place.train(&format!("{line} --nproc-per-node 1 --out b --overwrite")));
}
