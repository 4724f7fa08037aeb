//! The settings of a configuration as a file.

use toml::{Table, Value};

use super::NamedModel;
use super::command::{reduce_dtype, trained_dtype};
use crate::search::{PlanEvaluation, Workload};

/// A TOML for `brigade train --config`, with everything that was planned over the settings of `file`: the TOML of the model, or an empty one, where `model.path` names the
/// model's folder. There is none in fp16, in which Brigade does not train.
pub fn config(
    workload: &Workload,
    evaluation: &PlanEvaluation,
    model: &NamedModel,
    mut file: Table,
) -> Option<String> {
    let mut settings = evaluation.candidate.all_settings();
    let parts = if evaluation.split.len() > 1 { evaluation.split.as_slice() } else { &[] };
    settings.extend([
        ("compute.dtype", trained_dtype(workload)?.to_owned()),
        ("compute.reduce_dtype", reduce_dtype(workload, model).to_owned()),
        ("model.sequence_length", workload.sequence_length.to_string()),
        ("pipeline.stages", format!("{parts:?}")),
    ]);
    if !model.is_compressed {
        settings.push(("comm.compress", "none".to_owned()));
    }
    if let Some(rank) = model.lora_rank {
        settings.push(("lora.rank", rank.to_string()));
    }
    let mut settings: Vec<_> = settings.into_iter().map(|(name, given)| (name, value(given))).collect();
    if file.is_empty() && !model.name.is_empty() {
        settings.push(("model.path", Value::String(model.path().to_owned())));
    }
    for (name, value) in settings {
        let Some((section, key)) = name.split_once('.') else { continue };
        let section = file.entry(section).or_insert_with(|| Value::Table(Table::new()));
        if let Some(section) = section.as_table_mut() {
            section.insert(key.to_owned(), value);
        }
    }
    toml::to_string(&file).ok()
}

/// Numbers, truth values and lists are as they are, all else is text.
fn value(given: String) -> Value {
    let is_text = given.starts_with(|first: char| first.is_ascii_alphabetic())
        && !["true", "false"].contains(&given.as_str());
    let parsed = if is_text { None } else { given.parse().ok() };
    parsed.unwrap_or(Value::String(given))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelShape;
    use crate::report::{command, render};
    use crate::search::{Axes, Plan, plan};

    fn planned(axes: &Axes) -> (Workload, Plan) {
        let model = ModelShape::llama("8B", 32, 4096, 32, 8, 14336, 128_256, false);
        let workload = Workload::new(model, "2x8xH100".parse().unwrap(), 4096, 256);
        let plan = plan(&workload, axes, 4).unwrap();
        (workload, plan)
    }

    #[test]
    fn a_file_says_all_that_was_planned() {
        let (workload, plan) = planned(&Axes { pp: vec![2], zero: vec![3], ..Axes::default() });
        let best = &plan.best[0];
        let text = config(&workload, best, &NamedModel::default(), Table::new()).unwrap();
        let table: Table = text.parse().unwrap();
        let number = |section: &str, name: &str| table[section][name].as_integer().unwrap() as usize;
        let found = best.candidate;
        assert_eq!(
            [
                number("mesh", "pp"),
                number("mesh", "dp"),
                number("mesh", "replicate"),
                number("zero", "stage")
            ],
            [2, 8, found.replicate, 3]
        );
        assert_eq!(number("train", "micro_batch_size"), found.micro_batch);
        assert_eq!(number("train", "global_batch_size"), 256);
        assert_eq!(number("model", "sequence_length"), 4096);
        let parts = table["pipeline"]["stages"].as_array().unwrap();
        assert_eq!(parts.len(), best.split.len());
        assert_eq!(table["pipeline"]["schedule"].as_str(), Some(found.schedule.name()));
        assert_eq!(table["compute"]["dtype"].as_str(), Some("bf16"));
        assert_eq!(table["comm"]["compress"].as_str(), Some("none"));
        assert!(table["zero"]["keep_gathered"].is_bool(), "{text}");
        assert_eq!(number("zero", "prefetch"), 1);
    }

    #[test]
    fn a_file_says_which_model_it_is_of() {
        let (workload, plan) = planned(&Axes { pp: vec![2], zero: vec![1], ..Axes::default() });
        let table = |model: &str, file: &str| -> Table {
            let file = file.parse().unwrap();
            config(&workload, &plan.best[0], &model.into(), file).unwrap().parse().unwrap()
        };
        for (name, path) in [
            ("models/a", "models/a"),
            ("models/a/config.json", "models/a/"),
            ("config.json", "."),
            ("org/a", "org/a"),
        ] {
            assert_eq!(table(name, "")["model"]["path"].as_str(), Some(path));
        }
        let file = "[model.config]\nmodel_type = 'llama'\n[model]\nsequence_length = 8\n[data]\npaths = ['text']\n\
            [zero]\nstage = 3\nbucket_mb = 7\n[comm]\ncompress = 'int8'\n[optimizer]\nname = 'adan'";
        let table = table("my.toml", file);
        let [model, zero] = ["model", "zero"].map(|section| table[section].as_table().unwrap());
        assert_eq!(model["config"]["model_type"].as_str(), Some("llama"));
        assert_eq!((model.get("path"), model["sequence_length"].as_integer()), (None, Some(4096)));
        assert_eq!((zero["stage"].as_integer(), zero["bucket_mb"].as_integer()), (Some(1), Some(7)));
        assert_eq!(table["data"]["paths"][0].as_str(), Some("text"));
        assert_eq!(table["optimizer"]["name"].as_str(), Some("adan"));
        assert_eq!(table["comm"]["compress"].as_str(), Some("none"));
    }

    #[test]
    fn codes_are_made_from_fp32_and_flags_may_leave_them_out() {
        let (mut workload, plan) = planned(&Axes { pp: vec![2], ..Axes::default() });
        let model = NamedModel {
            name: "my.toml".into(),
            settings: vec!["comm.compress".into()],
            is_compressed: true,
            lora_rank: Some(8),
        };
        workload.reduce_bytes = 1.015625;
        let line = command(&workload, &plan.best[0], &model).unwrap();
        assert!(!line.contains("--compress") && !line.contains("reduce_dtype"), "{line}");
        assert!(line.contains("--lora-rank 8"), "{line}");
        let text = config(&workload, &plan.best[0], &model, Table::new()).unwrap();
        assert!(text.contains("reduce_dtype = \"fp32\"") && !text.contains("compress"), "{text}");
        assert!(text.contains("[lora]\nrank = 8\n"), "{text}");
        workload.reduce_bytes = 2.0;
        let line = command(&workload, &plan.best[0], &NamedModel { is_compressed: false, ..model }).unwrap();
        assert!(line.contains("--compress none --set compute.reduce_dtype=bf16"), "{line}");
    }

    #[test]
    fn every_row_has_its_parts_and_its_flags() {
        let (workload, plan) = planned(&Axes::default());
        let text = render(&workload, &plan, &"llama".into());
        let after = |title: &str| -> Vec<&str> {
            let found = text.lines().skip_while(|line| !line.starts_with(title)).skip(1);
            found.take(1 + plan.best.len()).collect()
        };
        let (memory, time) = (after("Memory of a rank of the fullest stage:"), after("Time of a step:"));
        assert!(memory[0].contains("activations") && time[0].contains("compute"), "{text}");
        let runs =
            after("To run any of them, add its flags to brigade train --model llama --nproc-per-node 8");
        for (at, best) in plan.best.iter().enumerate() {
            let number = format!("{}  ", at + 1);
            for row in [memory[at + 1], time[at + 1], runs[at]] {
                assert!(row.starts_with(&number), "{row}");
            }
            assert!(memory[at + 1].contains(&crate::columns::bytes(best.memory.activations)), "{text}");
            let share = format!("({:.1}%)", 100.0 * best.parts.compute / best.seconds);
            assert!(time[at + 1].contains(&share), "{share}: {text}");
            assert!(runs[at].contains(&best.candidate.flags()), "{text}");
            // What is above all rows and what is in one are the whole command.
            let line = command(&workload, best, &"llama".into()).unwrap();
            let shared =
                text.lines().find_map(|line| line.strip_prefix("To run any of them, add its flags to "));
            let mut parts: Vec<&str> = shared.unwrap().split(' ').chain(runs[at][3..].split(' ')).collect();
            let mut whole: Vec<&str> = line.split(' ').collect();
            parts.sort_unstable();
            whole.sort_unstable();
            assert_eq!(parts, whole);
        }
        let plan = Plan { best: plan.best[..1].to_vec(), ..plan };
        let text = render(&workload, &plan, &"llama".into());
        assert!(!text.contains("To run any of them") && !text.contains("Time of a step:"), "{text}");
    }
}
