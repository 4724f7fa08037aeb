//! Runs on different numbers of ranks beside each other.

use brigade_report::{CollectiveRecord, RunEvent};
use brigade_runs::Error;
use brigade_runs::scaling::{ScalingKind, scaling};

use crate::simulated::Simulated;

/// A run of the same batch on a number of ranks: 1 s for a rank of its own, and what does not scale.
fn strong(dp: usize, communication: f64) -> Simulated {
    Simulated {
        dp,
        communication: (communication, "all_reduce"),
        compute: Box::new(move |_, _| 8.0 / dp as f64),
        data_wait: Box::new(|_, _| 0.0),
        rest: Box::new(|_, _| 0.0),
        bytes: 2 * 100_000_000 * (dp as u64 - 1),
        ..Simulated::default()
    }
}

#[test]
fn a_batch_that_stays_as_large_follows_amdahl() {
    // A tenth of the work of one rank does not scale.
    let runs: Vec<_> = [8, 2, 1, 4].map(|dp| strong(dp, 8.0 / 9.0).run()).into();
    let found = scaling(&runs).unwrap();
    let ranks: Vec<usize> = found.points.iter().map(|point| point.profile.ranks).collect();
    assert_eq!((ranks, found.kind), (vec![1, 2, 4, 8], ScalingKind::Strong));
    assert!((found.law.unwrap().serial - 0.1).abs() < 0.01, "{:?}", found.law);
    let last = &found.points[3];
    assert!((last.speed_up - 1.0 / (0.1 + 0.9 / 8.0)).abs() < 0.1, "{}", last.speed_up);
    assert!((last.efficiency - last.speed_up / 8.0).abs() < 1e-9);
    assert_eq!(found.gap[0].name, "all_reduce that computing does not hide");
    assert!((found.gap[0].percent - 100.0).abs() < 8.0, "{:?}", found.gap);
    let text = found.to_string();
    for said in [
        "strong scaling",
        "Amdahl's law: ",
        "on 16 ranks",
        "all_reduce that computing",
        "What to change first:\n  1. ",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
}

#[test]
fn programs_get_what_the_text_says() {
    let runs: Vec<_> = [1, 2, 4].map(|dp| strong(dp, 0.5).run()).into();
    let json = scaling(&runs).unwrap().json();
    assert_eq!(
        (&json["kind"], &json["law"]["name"], &json["explained"]),
        (&"strong".into(), &"amdahl".into(), &"4".into())
    );
    let last = &json["runs"][2];
    assert_eq!(
        (&last["run"], &last["ranks"], &last["note"]),
        (&"4".into(), &4.into(), &serde_json::Value::Null)
    );
    let product = last["step_seconds"].as_f64().unwrap() * last["targets_per_second"].as_f64().unwrap();
    assert!((product - 4096.0).abs() < 1.0, "{json}");
    assert!(last["speed_up"].as_f64().unwrap() > 3.0 && last["efficiency"].as_f64().unwrap() < 1.0, "{json}");
    assert_eq!(json["findings"][0]["cause"], "exposed_communication", "{json}");
    assert_eq!(json["gap"][0]["name"], "all_reduce that computing does not hide", "{json}");
    assert!(
        json["too_few_steps"].is_null() && json["communication"]["bytes_per_second"].is_number(),
        "{json}"
    );
}

#[test]
fn a_batch_that_grows_follows_gustafson() {
    let weak = |dp: usize| {
        let communication = (0.25 * (dp as f64 - 1.0) / dp as f64, "all_reduce");
        Simulated { dp, communication, tokens: 1000 * dp as u64, bytes: 1 << 28, ..Simulated::default() }
            .run()
    };
    let found = scaling(&[weak(2), weak(4), weak(8)]).unwrap();
    assert!(found.kind == ScalingKind::Weak && found.law.unwrap().error < 0.05, "{:?}", found.law);
    assert!(found.to_string().contains("Gustafson's law: "));
    assert!(found.points.iter().all(|point| point.efficiency <= 1.0));
}

#[test]
fn a_batch_that_changes_otherwise_follows_no_law() {
    let of = |dp: usize, tokens: u64| Simulated { dp, tokens, ..Simulated::default() }.run();
    let found = scaling(&[of(1, 500), of(2, 2000)]).unwrap();
    assert_eq!((found.kind, found.law), (ScalingKind::Mixed, None));
    let text = found.to_string();
    assert!(text.starts_with("neither strong nor weak scaling") && !text.contains("law:"), "{text}");
}

#[test]
fn runs_that_scale_as_they_should_have_no_gap() {
    let found = scaling(&[strong(1, 0.0).run(), strong(4, 0.0).run()]).unwrap();
    assert_eq!((found.gap.len(), found.findings.len()), (0, 0), "{found:?}");
    assert!(found.to_string().ends_with("more than a few percent faster.\n"), "{found}");
}

#[test]
fn communication_is_modelled_where_runs_show_it() {
    let is_modelled = |runs: Vec<Simulated>| {
        let found = scaling(&runs.iter().map(Simulated::run).collect::<Vec<_>>()).unwrap();
        assert_eq!(found.communication.is_some(), found.to_string().contains("Exposed communication: "));
        found.communication.is_some()
    };
    let hidden = |dp, hidden| Simulated { hidden, ..strong(dp, 0.1) };
    assert!(is_modelled(vec![strong(1, 0.0), strong(2, 0.1), strong(4, 0.2)]));
    assert!(!is_modelled(vec![strong(1, 0.0), strong(4, 0.2)]), "one run fits any model");
    assert!(is_modelled(vec![hidden(2, 0.05), hidden(4, 0.05)]));
    assert!(!is_modelled(vec![hidden(2, 0.5), hidden(4, 0.5)]), "most of it is hidden");
}

#[test]
fn rings_have_the_ranks_of_their_groups_and_stages_send_by_themselves() {
    let sent = |pp: usize, dp: usize, mesh: &[(&str, usize)], collectives: &[(&str, u64, u64)]| {
        let mut run = Simulated { pp, dp, ..Simulated::default() }.run();
        if let RunEvent::Started { mesh: own, .. } = &mut run.history[0].event {
            *own = mesh.iter().map(|(axis, size)| ((*axis).to_owned(), *size)).collect();
        }
        let kinds = collectives.iter().map(|(what, calls, bytes)| {
            ((*what).to_owned(), CollectiveRecord { calls: *calls, bytes: *bytes })
        });
        run.records.last_mut().unwrap().collectives = kinds.collect();
        let one = Simulated { dp: 1, communication: (0.0, "all_reduce"), bytes: 0, ..Simulated::default() };
        let found = scaling(&[one.run(), run]).unwrap();
        found.points[1].sent
    };
    // Two rings of three others, and what all ranks tell one another.
    let all_reduce = [("all_reduce", 10, 8000), ("all_gather_scalars", 2, 80)];
    assert_eq!(sent(1, 4, &[("pp", 1), ("dp", 4)], &all_reduce), (66.0, 2020.0));
    // Groups of four on two stages, whose messages are of the pipeline.
    let stages = [("all_reduce", 10, 8000), ("send", 64, 1 << 30)];
    assert_eq!(sent(2, 4, &[("pp", 2), ("dp", 4)], &stages), (60.0, 1000.0));
    // Shards over four ranks, of which there are two replicas.
    let shards = [("all_reduce", 10, 800), ("reduce_scatter", 10, 8000), ("all_gather", 10, 7200)];
    assert_eq!(sent(1, 8, &[("replicate", 2), ("dp", 4)], &shards), (20.0 + 30.0 + 30.0, 2000.0));
}

#[test]
fn of_several_largest_runs_the_fastest_is_explained() {
    let named = |name: &str, communication| {
        let mut run = strong(4, communication).run();
        run.name = name.to_owned();
        run
    };
    let (fast, slow) = (named("fast", 0.5), named("slow", 2.0));
    let one = strong(1, 0.0).run();
    for largest in [[fast.clone(), slow.clone()], [slow, fast]] {
        let found = scaling(&[&[one.clone()][..], &largest].concat()).unwrap();
        let names: Vec<&str> = found.points.iter().map(|point| point.name.as_str()).collect();
        assert_eq!((names, found.explained), (vec!["1", "fast", "slow"], 1));
        let text = found.to_string();
        for said in [
            "The gap of fast to linear scaling:",
            "What to change first in fast, the fastest of the largest runs:",
            "Communication of fast: 500.000 ms",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }
}

#[test]
fn what_says_nothing_of_scaling_is_refused() {
    let message = |runs: &[_]| scaling(runs).unwrap_err().to_string();
    let said = "scaling needs runs on at least two different numbers of ranks; ";
    assert_eq!(message(&[]), format!("{said}no run was given"));
    assert_eq!(
        message(&[strong(2, 0.0).run(), strong(2, 0.0).run()]),
        format!("{said}all that were given ran on 2")
    );
    let mut other = strong(4, 0.0).run();
    other.settings.iter_mut().for_each(|setting| setting.value.push('0'));
    assert!(matches!(scaling(&[strong(2, 0.0).run(), other]), Err(Error::NotComparable { .. })));
}
