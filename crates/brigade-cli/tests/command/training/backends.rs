//! What ranks compute on, and what a machine has for it.

use crate::place::Place;

#[test]
fn the_doctor_says_what_the_machine_has() {
    let place = Place::new();
    let refused = place.run(&mut place.brigade("doctor --pp 2"));
    assert!(refused.code == Some(2) && refused.err.contains("--pp needs --network"), "{}", refused.err);
    let refused = place.run(&mut place.brigade("doctor --network --nproc-per-node 2 --collectives mpi"));
    assert!(refused.code == Some(2) && refused.err.contains("--collectives = mpi"), "{}", refused.err);
    let done = place.run(&mut place.brigade("doctor"));
    for part in ["backends of this program", "cpu", "cores", "/dev/shm", "open files"] {
        assert!(done.out.contains(part), "{part:?} is not in: {}", done.out);
    }
    let missing = done.out.lines().any(|line| line.starts_with("MISSING"));
    assert_eq!(done.code, Some(i32::from(missing)), "{}", done.out);
    let limited = format!("ulimit -n 512 && exec {} doctor --world-size 512", env!("CARGO_BIN_EXE_brigade"));
    let done = place.run(std::process::Command::new("sh").args(["-c", &limited]));
    assert_eq!(done.code, Some(1), "{}", done.out);
    assert!(done.out.contains("512, enough for worlds of 128 ranks"), "{}", done.out);
    assert!(done.out.contains("a rank of a world of 512 may need 1664"), "{}", done.out);
}

/// The backend is written into the run's folder, so that another program goes on alike; what follows from it stays `auto`,
/// and is said beside it. A checkpoint holds what it stood for, so that a change is told.
#[test]
fn the_choice_is_kept_with_the_run() {
    let place = Place::new();
    place
        .succeed(&mut place.train("--nproc-per-node 1 --backend cpu --steps 1 --checkpoint-every 1 --out a"));
    let text = place.text("a/config.toml");
    let config: toml::Table = text.parse().unwrap();
    assert_eq!(config["compute"]["backend"].as_str(), Some("cpu"));
    assert_eq!(config["compute"]["dtype"].as_str(), Some("auto"));
    assert_eq!(config["comm"]["collectives"].as_str(), Some("auto"));
    assert!(text.contains("# compute.dtype: auto is fp32 on cpu\n"), "{text}");
    assert!(text.contains("# comm.collectives: auto is host on cpu\n"), "{text}");
    let go_on = |line: &str| place.succeed(&mut place.brigade(&format!("train --resume a {line}"))).err;
    assert!(!go_on("--collectives host --set compute.dtype=f32").contains("changed: "));
    let told = go_on("--steps 2 --set compute.dtype=bf16");
    assert!(told.contains("changed: compute.dtype: \"fp32\" before, now \"bf16\""), "{told}");
}
