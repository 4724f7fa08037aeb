//! The weight decay of optimizers that add it to the gradient.

use toml::{Table, Value};

use super::optimizer::OptimizerSettings;

/// Optimizers of which weight decay is an L2 penalty: the decay that suits the others would be hundreds of times too much.
const PENALIZED: [&str; 4] = ["adam", "adagrad", "rmsprop", "sgd"];

/// Whether layers of a configuration name an optimizer, and give a weight decay.
#[derive(Default, Clone, Copy)]
pub(crate) struct GivenDecay {
    name: bool,
    decay: bool,
}

impl GivenDecay {
    /// Looks at one more layer.
    pub fn add(&mut self, layer: &Table) {
        let gives = |key: &str| layer.get("optimizer").is_some_and(|section| section.get(key).is_some());
        self.name |= gives("name");
        self.decay |= gives("weight_decay");
    }

    /// Gives a configuration whose optimizer is another than that of the defaults the decay that suits it, unless one is given.
    pub fn replace(self, config: &mut Table, defaults: &Table) {
        fn name(section: &Table) -> Option<&str> {
            section.get("name").and_then(Value::as_str)
        }
        let Some(Value::Table(usual)) = defaults.get("optimizer") else { return };
        let Some(Value::Table(section)) = config.get_mut("optimizer") else { return };
        let (Some(own), Some(before)) = (name(section), name(usual)) else { return };
        if !self.name || self.decay || own == before {
            return;
        }
        let had_none = usual.get("weight_decay").and_then(Value::as_float) == Some(0.0);
        let decay = match (PENALIZED.contains(&own), PENALIZED.contains(&before)) {
            (true, _) => 0.0,
            (false, true) if had_none => f64::from(OptimizerSettings::default().weight_decay),
            _ => return,
        };
        section.insert("weight_decay".to_owned(), Value::Float(decay));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use crate::Settings;
    use crate::settings::{merge_config, parse_defaults};

    #[test]
    fn an_l2_penalty_is_only_there_if_it_is_given() {
        let merged = |sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            merge_config(&Settings::default(), &[], &sets).unwrap().optimizer.weight_decay
        };
        for (name, usual) in [("adamw", 0.1), ("lion", 0.1), ("adan", 0.1), ("sgd", 0.0), ("rmsprop", 0.0)] {
            let name = format!("optimizer.name={name}");
            assert_eq!(merged(&[&name]), usual, "{name}");
            for sets in [[&name, "optimizer.weight_decay=0.2"], ["optimizer.weight_decay=0.2", &name]] {
                assert_eq!(merged(&sets), 0.2, "{name}");
            }
        }
        let own = |text: &str| parse_defaults::<Settings>(text).unwrap().optimizer.weight_decay;
        assert_eq!(own("optimizer = { name = 'adam' }"), 0.0);
        assert_eq!(own("optimizer = { name = 'adam', weight_decay = 0.3 }"), 0.3);
        // What a program has chosen for its optimizer stays.
        let mut chosen = Settings::default();
        (chosen.optimizer.name, chosen.optimizer.weight_decay) = ("sgd".into(), 1e-4);
        let merged = merge_config(&chosen, &[], &["train.seed=1".to_owned()]).unwrap();
        assert_eq!(merged.optimizer.weight_decay, 1e-4);
        let with = |defaults: &str, set: &str| {
            let defaults: Settings = parse_defaults(defaults).unwrap();
            merge_config(&defaults, &[], &[set.to_owned()]).unwrap().optimizer.weight_decay
        };
        assert_eq!(with("optimizer = { name = 'sgd', weight_decay = 5e-4 }", "optimizer.name=sgd"), 5e-4);
        assert_eq!(with("optimizer = { name = 'sgd' }", "optimizer.name=adamw"), 0.1);
        assert_eq!(with("optimizer = { weight_decay = 0.05 }", "optimizer.name=lion"), 0.05);
        assert_eq!(with("optimizer = { weight_decay = 0.05 }", "optimizer.name=sgd"), 0.0);
    }
}
