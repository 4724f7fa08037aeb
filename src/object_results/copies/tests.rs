#![allow(clippy::unwrap_used)]

use super::*;

struct Place {
    _temp: tempfile::TempDir,
    local: PathBuf,
    remote: PathBuf,
    results: ObjectResults,
}

fn place() -> Place {
    let temp = tempfile::tempdir().unwrap();
    let [local, remote] = ["local", "remote"].map(|name| temp.path().join(name));
    fs::create_dir_all(local.join("logs")).unwrap();
    let results = ObjectResults::open(&format!("file://{}", remote.display())).unwrap();
    Place { _temp: temp, local, remote, results }
}

impl Place {
    /// One that has just begun, by the clock of files.
    fn copier(&self, copied: Copied) -> Copier {
        let copier = Copier::new(self.results.clone(), &self.local, copied, Box::new(|| true)).unwrap();
        Copier { began: SystemTime::now() - Duration::from_millis(50), ..copier }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.local.join(name), text).unwrap();
    }

    fn there(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.remote.join(name)).ok()
    }
}

fn all() -> Copied {
    Copied::default()
}

#[test]
fn what_a_run_writes_is_copied_and_nothing_else() {
    let place = place();
    fs::create_dir(place.local.join(EXCEPT)).unwrap();
    for name in ["a.txt", "logs/rank-0.log", ".brigade.lock", ".a.txt.abcdefgh.part", "checkpoints/x"] {
        place.write(name, "1");
    }
    let copies =
        Copies::start(place.results.clone(), &place.local, all(), Duration::from_secs(60), || true).unwrap();
    place.write("last.txt", "2");
    copies.finish().unwrap();
    for (name, content) in [("a.txt", "1"), ("logs/rank-0.log", "1"), ("last.txt", "2")] {
        assert_eq!(place.there(name).as_deref(), Some(content), "{name}");
    }
    for name in [".brigade.lock", ".a.txt.abcdefgh.part", "checkpoints/x"] {
        assert_eq!(place.there(name), None, "{name}");
    }
}

#[test]
fn only_what_has_changed_is_copied_again() {
    let place = place();
    let mut copier = place.copier(all());
    place.write("a.txt", "1");
    place.write("b.txt", "1");
    copier.round().unwrap();
    assert!(copier.changed().unwrap().is_empty());
    place.write("a.txt", "12");
    assert_eq!(copier.changed().unwrap().len(), 1);
    copier.round().unwrap();
    assert_eq!(place.there("a.txt").as_deref(), Some("12"));
}

#[test]
fn what_another_machine_has_written_since_stays() {
    let place = place();
    place.write("model.safetensors", "old");
    place.write("logs/rank-0.log", "old");
    place.copier(all()).round().unwrap();
    for name in ["model.safetensors", "logs/rank-0.log"] {
        fs::write(place.remote.join(name), "of another machine").unwrap();
    }
    place.write("config.toml", "new");
    let mut copier = Copier { began: SystemTime::now() + Duration::from_secs(1), ..place.copier(all()) };
    copier.round().unwrap();
    assert_eq!(place.there("model.safetensors").as_deref(), Some("of another machine"));
    assert_eq!(place.there("logs/rank-0.log").as_deref(), Some("of another machine"));
    assert_eq!(place.there("config.toml").as_deref(), Some("new"));
    // But what changes here from now on is copied.
    place.write("model.safetensors", "newest");
    copier.round().unwrap();
    assert_eq!(place.there("model.safetensors").as_deref(), Some("newest"));
}

#[test]
fn other_nodes_copy_what_their_ranks_write() {
    let place = place();
    place.write("config.toml", "1");
    place.write("logs/rank-4.log", "1");
    place.copier(Copied { folders: Some(&["logs", "flight"]), ..all() }).round().unwrap();
    assert_eq!((place.there("config.toml"), place.there("logs/rank-4.log")), (None, Some("1".into())));
}

#[test]
fn files_of_an_earlier_run_stay_until_this_one_writes() {
    let place = place();
    for name in ["model.safetensors", "config.toml", "logs/rank-3.log"] {
        place.write(name, "old");
    }
    place.copier(all()).round().unwrap();
    for name in ["model.safetensors", "logs/rank-3.log"] {
        fs::remove_file(place.local.join(name)).unwrap();
    }
    let replaced = ["model.safetensors", "config.toml", "logs/rank-3.log"].map(str::to_owned).to_vec();
    let mut copier = place.copier(Copied { replaced, once: &["metrics.jsonl"], ..all() });
    place.write("config.toml", "new");
    copier.round().unwrap();
    assert_eq!(place.there("model.safetensors").as_deref(), Some("old"));
    place.write("metrics.jsonl", "{}");
    copier.round().unwrap();
    assert_eq!((place.there("model.safetensors"), place.there("logs/rank-3.log")), (None, None));
    assert_eq!(place.there("config.toml").as_deref(), Some("new"));
    assert!(copier.copied.replaced.is_empty());
}

#[test]
fn files_of_an_earlier_run_that_this_one_removes_late_go_as_well() {
    let place = place();
    place.write("model.safetensors", "old");
    let written = File::options().write(true).open(place.local.join("model.safetensors")).unwrap();
    written.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
    place.copier(all()).round().unwrap();
    let replaced = vec!["model.safetensors".to_owned()];
    let mut copier = place.copier(Copied { replaced, once: &["metrics.jsonl"], ..all() });
    place.write("metrics.jsonl", "{}");
    copier.remove_replaced().unwrap();
    assert_eq!(place.there("model.safetensors").as_deref(), Some("old"), "it is here as well");
    fs::remove_file(place.local.join("model.safetensors")).unwrap();
    copier.remove_replaced().unwrap();
    assert_eq!(place.there("model.safetensors"), None);
    assert!(copier.copied.replaced.is_empty());
}

#[test]
fn what_is_here_of_another_run_is_not_copied() {
    let place = place();
    for name in ["model.safetensors", "metrics.jsonl"] {
        place.write(name, "of another run");
    }
    let mut copier = place.copier(Copied { is_of_another_run: true, ..all() });
    place.write("metrics.jsonl", "of this run, in which more was written");
    copier.round().unwrap();
    assert_eq!(place.there("model.safetensors"), None);
    assert!(place.there("metrics.jsonl").unwrap().starts_with("of this run"));
}

#[test]
fn a_bucket_of_another_run_is_left_alone() {
    let place = place();
    place.write("a.txt", "1");
    let mut copier = Copier { is_own: Box::new(|| false), ..place.copier(all()) };
    copier.round().unwrap();
    assert_eq!(place.there("a.txt"), None);
}

#[test]
fn what_fails_is_named_and_the_rest_is_copied() {
    let place = place();
    // A folder of the name of a file.
    fs::create_dir_all(place.remote.join("a.txt/x")).unwrap();
    place.write("a.txt", "1");
    place.write("b.txt", "1");
    let error = place.copier(all()).round().unwrap_err().to_string();
    assert!(error.contains("a.txt"), "{error}");
    assert_eq!(place.there("b.txt").as_deref(), Some("1"));
}

#[test]
fn the_newer_of_two_files_is_fetched() {
    let place = place();
    place.write("metrics.jsonl", "old");
    place.write("config.toml", "old");
    place.copier(all()).round().unwrap();
    let late = SystemTime::now() + Duration::from_secs(60);
    let set = |file: PathBuf| File::options().write(true).open(file).unwrap().set_modified(late).unwrap();
    place.write("config.toml", "newer here");
    set(place.local.join("config.toml"));
    fs::write(place.remote.join("metrics.jsonl"), "newer there").unwrap();
    set(place.remote.join("metrics.jsonl"));
    place.results.fetch(&place.local, &["metrics.jsonl", "config.toml", "none"]).unwrap();
    let here = |name: &str| fs::read_to_string(place.local.join(name)).unwrap();
    assert_eq!((here("metrics.jsonl"), here("config.toml")), ("newer there".into(), "newer here".into()));
    // Another machine.
    let other = place.local.join("other");
    place.results.fetch(&other, &["metrics.jsonl"]).unwrap();
    assert_eq!(fs::read_to_string(other.join("metrics.jsonl")).unwrap(), "newer there");
    assert!(!other.join("config.toml").exists());
}
