//! The weight decay of optimizers that add it to the gradient.

use toml::{Table, Value};

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

    /// Takes the default out of a configuration whose optimizer adds it to the gradient.
    pub fn replace(self, config: &mut Table) {
        let Some(Value::Table(section)) = config.get_mut("optimizer") else { return };
        let is_penalty =
            section.get("name").and_then(Value::as_str).is_some_and(|name| PENALIZED.contains(&name));
        if self.name && !self.decay && is_penalty {
            section.insert("weight_decay".to_owned(), Value::Float(0.0));
        }
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
    }
}
