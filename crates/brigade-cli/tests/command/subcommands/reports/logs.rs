//! `--log-format json`: what launcher and ranks write to standard error, for collectors of logs.

use serde_json::Value;

use crate::place::Place;

/// Each line as the object that it must be.
fn objects(text: &str) -> Vec<Value> {
    let object = |line: &str| {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for key in ["time", "level", "rank", "host", "message"] {
            assert!(object.get(key).is_some(), "{key}: {line}");
        }
        object
    };
    text.lines().map(object).collect()
}

#[test]
fn every_line_is_an_object_and_steps_have_their_numbers() {
    let place = Place::new();
    let done = place.succeed(&mut place.train("--nproc-per-node 2 --log-format json --out a"));
    let lines = objects(&done.err);
    let steps: Vec<&Value> = lines.iter().filter(|line| line["message"] == "step").collect();
    let last = steps.last().unwrap();
    assert_eq!((&last["rank"], &last["fields"]["step"]), (&0.into(), &10.into()));
    assert_eq!(last["fields"]["loss"], place.metrics("a")[9]["loss"]);
    assert!(
        lines.iter().any(|line| line["rank"].is_null()),
        "the launcher says something, too: {}",
        done.err
    );
    // So is the summary, as a whole.
    let summary = objects(&done.out);
    assert!(summary.len() == 1 && summary[0]["rank"] == 0, "{}", done.out);
    assert!(summary[0]["message"].as_str().unwrap().lines().count() > 5, "{}", done.out);
    // The weights do not depend on it.
    place.succeed(&mut place.train("--nproc-per-node 2 --out b"));
    assert!(place.read("a/model.safetensors") == place.read("b/model.safetensors"));
}

#[test]
fn failures_are_objects_and_a_wrong_format_is_one_message() {
    let place = Place::new();
    let line = "--nproc-per-node 2 --log-format json --set optimizer.learning_rate=1e30 --set schedule.warmup_steps=0 --out a";
    let done = place.run(&mut place.train(line));
    assert_eq!(done.code, Some(1), "{}", done.err);
    let errors: Vec<Value> = objects(&done.err).into_iter().filter(|line| line["level"] == "error").collect();
    assert!(errors[0]["message"].as_str().unwrap().contains("not finite"), "{errors:?}");
    objects(&place.text("a/logs/rank-1.log"));
    let wrong = place.run(&mut place.train("--log-format yaml --out b"));
    assert_eq!(wrong.code, Some(2), "{}", wrong.err);
    assert!(wrong.err.contains("'yaml'") && wrong.err.contains("it must be text or json"), "{}", wrong.err);
}
