//! What ranks compute on, and what a machine has for it.

use crate::place::Place;

#[test]
fn the_doctor_says_what_the_machine_has() {
    let place = Place::new();
    let done = place.run(&mut place.brigade("doctor"));
    for part in ["backends of this program", "cpu", "cores", "/dev/shm", "open files"] {
        assert!(done.out.contains(part), "{part:?} is not in: {}", done.out);
    }
    let missing = done.out.lines().any(|line| line.starts_with("MISSING"));
    assert_eq!(done.code, Some(i32::from(missing)), "{}", done.out);
}

/// What `auto` stands for is written into the run's folder, so that another program goes on alike.
#[test]
fn the_choice_is_kept_with_the_run() {
    let place = Place::new();
    place.succeed(&mut place.train("--nproc-per-node 1 --backend cpu --steps 1 --out a"));
    let config: toml::Table = place.text("a/config.toml").parse().unwrap();
    assert_eq!(config["compute"]["backend"].as_str(), Some("cpu"));
    assert_eq!(config["compute"]["dtype"].as_str(), Some("f32"));
    assert_eq!(config["comm"]["collectives"].as_str(), Some("host"));
}
