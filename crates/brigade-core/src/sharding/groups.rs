//! Groups of parameters that are trained in another way than the rest.

use brigade_sorted::SortedMap;
use glob::Pattern;

use crate::error::{Error, Result};
use crate::model::block::NamedBlock;
use crate::model::chain::blocks::Blocks;
use crate::model::objective::Model;

/// The most names that ranges of numbers in a pattern make.
const MAX_NUMBERS: usize = 10_000;

/// Parameters that are trained in another way than the rest. A parameter belongs to the first group whose pattern matches it.
///
/// ```
/// use brigade_core::ParameterGroup;
/// let embeddings = ParameterGroup { learning_rate_factor: 0.1, ..ParameterGroup::matching("embedding.*") };
/// let backbone = ParameterGroup { frozen: true, ..ParameterGroup::matching("encoder.0-3.*") };
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterGroup {
    /// Which parameters, by full name (`block.path`, as in `encoder.0.attention.query.weight`): `*` stands for any text, dots
    /// included, `0-11` between dots for one of these numbers, `?` for one character, and `[ab]` for one of these.
    pub pattern: String,
    /// The setting that gives the pattern, for messages.
    pub setting: &'static str,
    /// What multiplies the learning rate of each step.
    pub learning_rate_factor: f64,
    /// In place of the optimizer's; biases and norms (parameters of rank below two) have none here, either.
    pub weight_decay: Option<f32>,
    /// Whether training leaves them as they are. They then have no gradient and no state of the optimizer, like those that a module
    /// itself freezes (`no_grad`).
    pub frozen: bool,
}

impl ParameterGroup {
    /// Parameters whose names match a pattern, trained as the rest.
    pub fn matching(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
            setting: "optimizer.groups.pattern",
            learning_rate_factor: 1.0,
            weight_decay: None,
            frozen: false,
        }
    }
}

impl Blocks {
    /// Checks that groups fit the parameters, as [`Engine::new`](crate::Engine::new) does.
    ///
    /// # Errors
    /// If a group's pattern or a number is wrong, no parameter belongs to a group, or the groups leave nothing to train.
    pub fn check_groups(&self, groups: &[ParameterGroup]) -> Result<()> {
        self.check_trainable(&self.grouping(groups)?)
    }

    /// Checks that something is trained.
    pub(crate) fn check_trainable(&self, grouping: &Grouping) -> Result<()> {
        let is_trained = |NamedBlock { name, block }: &NamedBlock| {
            let specs = block.specs();
            let mut trainable = specs.iter().filter(|(_, spec)| spec.trainable && !spec.running);
            trainable.any(|(path, _)| !grouping.is_frozen(&format!("{name}.{path}")))
        };
        if self.blocks.iter().any(is_trained) {
            return Ok(());
        }
        Err(Error::Model(
            "the model has no parameter to train: patterns of train.freeze, groups with `frozen = true` and `freeze()` in the program leave none".into(),
        ))
    }

    /// Which group each parameter belongs to.
    pub(crate) fn grouping(&self, groups: &[ParameterGroup]) -> Result<Grouping> {
        let ties = self.resolved_ties()?;
        let full = |(block, path): &(usize, String)| format!("{}.{path}", self.blocks[*block].name);
        let followers: Vec<_> = ties.iter().map(|tie| (full(&tie.follower), full(&tie.owner))).collect();
        let is_follower = |name: &String| followers.iter().any(|(follower, _)| follower == name);
        let parameters = self.blocks.iter().flat_map(|NamedBlock { name, block }| {
            let specs = block.specs().into_iter().filter(|(_, spec)| !spec.running);
            specs.map(move |(path, _)| format!("{name}.{path}"))
        });
        let names: Vec<_> = parameters.filter(|name| !is_follower(name)).collect();
        Grouping::new(groups, &names, &followers)
    }

    /// Freezes the parameters of the groups that say so.
    pub(crate) fn freeze(&mut self, grouping: &Grouping) {
        for NamedBlock { name, block } in &mut self.blocks {
            block.freeze(&|path| grouping.is_frozen(&format!("{name}.{path}")));
        }
    }

    /// Freezes the parameters that are frozen in other blocks, where these have blocks and parameters of the same names.
    pub(crate) fn freeze_as(&mut self, others: &Self) {
        for NamedBlock { name, block } in &mut self.blocks {
            let Some(other) = others.blocks.iter().find(|other| other.name == *name) else { continue };
            let specs = other.block.specs();
            block.freeze(&|path| specs.get(path).is_some_and(|spec| !spec.trainable));
        }
    }

    /// Freezes all parameters.
    pub(crate) fn freeze_all(&mut self) {
        for NamedBlock { block, .. } in &mut self.blocks {
            block.freeze(&|_| true);
        }
    }
}

impl<I, O, T> Model<I, O, T> {
    /// Freezes the parameters of the groups that say so, as [`Engine::new`](crate::Engine::new) does, so that measurements do as well.
    ///
    /// # Errors
    /// If a group's pattern or a number is wrong, or no parameter belongs to a group.
    pub fn freeze(&mut self, groups: &[ParameterGroup]) -> Result<()> {
        let grouping = self.chain.grouping(groups)?;
        self.chain.freeze(&grouping);
        Ok(())
    }
}

/// Which group each parameter of a model belongs to.
#[derive(Debug)]
pub(crate) struct Grouping {
    groups: SortedMap<String, usize>,
    frozen: Vec<bool>,
}

impl Grouping {
    /// Groups the parameters of these names. `followers` have the values of other ones: their names, and the others'.
    ///
    /// # Errors
    /// If a pattern or a value is wrong, or a group has no parameter; the message then has names that are near.
    pub(crate) fn new(
        groups: &[ParameterGroup],
        names: &[String],
        followers: &[(String, String)],
    ) -> Result<Self> {
        let patterns = groups.iter().map(compiled).collect::<Result<Vec<_>>>()?;
        let first = |name: &String| patterns.iter().position(|pattern| pattern.matches(name));
        let found: SortedMap<_, _> =
            names.iter().filter_map(|name| Some((name.clone(), first(name)?))).collect();
        let is_empty = |group: &usize| found.values().all(|other| other != group);
        // What is frozen may be frozen twice.
        let is_frozen_before = |group: &usize| {
            let mut matched = names.iter().filter(|name| patterns[*group].matches(name)).peekable();
            groups[*group].frozen
                && matched.peek().is_some()
                && matched.all(|name| groups[found[name]].frozen)
        };
        if let Some(index) = (0..groups.len()).find(|group| is_empty(group) && !is_frozen_before(group)) {
            let pattern = &patterns[index];
            let earlier = names.iter().find(|name| pattern.matches(name)).and_then(|name| found.get(name));
            let follower = followers.iter().find(|(name, _)| pattern.matches(name));
            let allowed = match (earlier, follower) {
                (Some(earlier), _) if groups[*earlier].setting != groups[index].setting => format!(
                    "all parameters that it matches belong to {} = `{}`",
                    groups[*earlier].setting, groups[*earlier].pattern
                ),
                (Some(earlier), _) => format!(
                    "all parameters that it matches belong to earlier groups, such as `{}`, because the first match counts; put it before them",
                    groups[*earlier].pattern
                ),
                (None, Some((name, owner))) => {
                    format!("`{name}` shares the values of `{owner}`; use that name")
                }
                (None, None) => {
                    format!("it matches no parameter; there is {}", near(&groups[index].pattern, names))
                }
            };
            return Err(refused(groups[index].setting, &groups[index].pattern, allowed));
        }
        Ok(Self { groups: found, frozen: groups.iter().map(|group| group.frozen).collect() })
    }

    /// The group of a parameter, by full name.
    pub(crate) fn of(&self, name: &str) -> Option<usize> {
        self.groups.get(name).copied()
    }

    /// Whether a parameter's group is frozen.
    pub(crate) fn is_frozen(&self, name: &str) -> bool {
        self.of(name).is_some_and(|group| self.frozen[group])
    }
}

/// A pattern of names, as one for each choice of numbers in its ranges.
struct NamePattern(Vec<Pattern>);

impl NamePattern {
    fn new(text: &str) -> Result<Self, String> {
        if let Some(numbers) = numbers_in_brackets(text) {
            return Err(format!("brackets stand for one character; the numbers are written {numbers}"));
        }
        let mut texts = vec![String::new()];
        for (index, part) in text.split('.').enumerate() {
            let dot = if index > 0 { "." } else { "" };
            let parts = match range(part) {
                None => vec![part.to_owned()],
                Some((first, last)) if first > last => {
                    return Err(format!("`{part}` has no number: the first must not be above the last"));
                }
                Some((first, last)) => (first..=last).map(|number| number.to_string()).collect(),
            };
            if texts.len().saturating_mul(parts.len()) > MAX_NUMBERS {
                return Err(format!("`{part}` makes more than {MAX_NUMBERS} names; `*` stands for all"));
            }
            let add =
                |text: &String| parts.iter().map(|part| format!("{text}{dot}{part}")).collect::<Vec<_>>();
            texts = texts.iter().flat_map(add).collect();
        }
        let patterns = texts.iter().map(|text| Pattern::new(text).map_err(|error| error.msg.to_owned()));
        Ok(Self(patterns.collect::<Result<_, _>>()?))
    }

    fn matches(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(name))
    }
}

/// The inside of `[0-11]`, if there is one.
fn numbers_in_brackets(text: &str) -> Option<&str> {
    let mut insides = text.split('[').skip(1).filter_map(|rest| Some(rest.split_once(']')?.0));
    insides.find(|inside| inside.len() > "0-9".len() && range(inside).is_some())
}

/// The first and the last number of `0-11`.
fn range(part: &str) -> Option<(u32, u32)> {
    let (first, last) = part.split_once('-')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(first) && is_number(last)).then(|| Some((first.parse().ok()?, last.parse().ok()?))).flatten()
}

fn compiled(group: &ParameterGroup) -> Result<NamePattern> {
    let ParameterGroup { pattern, setting, learning_rate_factor: factor, weight_decay, .. } = group;
    if !(factor.is_finite() && *factor >= 0.0) {
        let allowed = format!("the learning rate of the group `{pattern}` must be a number of at least 0");
        return Err(refused("optimizer.groups.learning_rate", factor, allowed));
    }
    if let Some(decay) = weight_decay.filter(|decay| !(decay.is_finite() && *decay >= 0.0)) {
        let allowed = format!("the weight decay of the group `{pattern}` must be a number of at least 0");
        return Err(refused("optimizer.groups.weight_decay", decay, allowed));
    }
    NamePattern::new(pattern).map_err(|problem| refused(setting, pattern, problem))
}

fn refused(option: &'static str, given: impl ToString, allowed: String) -> Error {
    Error::Setting { option, given: given.to_string(), allowed }
}

/// The names most like a pattern, in words.
fn near(pattern: &str, names: &[String]) -> String {
    let mut names: Vec<_> =
        names.iter().map(|name| (strsim::jaro_winkler(pattern, name), name.as_str())).collect();
    names.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let shown: Vec<_> = names.iter().take(3).map(|(_, name)| format!("`{name}`")).collect();
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        [
            "embedding.tokens.weight",
            "encoder.0.linear.bias",
            "encoder.0.linear.weight",
            "encoder.1.norm.gamma",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    fn grouped(patterns: &[&str]) -> Result<Vec<Option<usize>>> {
        let groups: Vec<_> = patterns.iter().map(|pattern| ParameterGroup::matching(*pattern)).collect();
        let followers = [("head.weight".to_owned(), "embedding.tokens.weight".to_owned())];
        let grouping = Grouping::new(&groups, &names(), &followers)?;
        Ok(names().iter().map(|name| grouping.of(name)).collect())
    }

    #[test]
    fn numbers_in_brackets_are_refused() {
        let refused = grouped(&["encoder.[0-11].*"]).unwrap_err().to_string();
        assert!(
            refused.ends_with("brackets stand for one character; the numbers are written 0-11"),
            "{refused}"
        );
        assert_eq!(grouped(&["encoder.[0-1].*"]).unwrap(), grouped(&["encoder.0-1.*"]).unwrap());
    }

    #[test]
    fn the_first_match_counts() {
        assert_eq!(grouped(&["*.bias", "encoder.*"]).unwrap(), [None, Some(0), Some(1), Some(1)]);
        assert_eq!(grouped(&["encoder.[1-9].*", "*"]).unwrap(), [Some(1), Some(1), Some(1), Some(0)]);
        assert_eq!(grouped(&[]).unwrap(), [None; 4]);
    }

    #[test]
    fn a_group_without_parameters_is_refused_with_names_that_are_near() {
        let refused = |patterns: &[&str]| grouped(patterns).unwrap_err().to_string();
        let message = refused(&["embeding.*"]);
        assert!(
            message.starts_with(
                "optimizer.groups.pattern = embeding.* is not possible: it matches no parameter; there is `embedding.tokens.weight`, "
            ),
            "{message}"
        );
        let message = refused(&["encoder.*", "*.bias"]);
        assert!(message.contains("*.bias is not possible: all parameters that it matches belong to earlier groups, such as `encoder.*`"), "{message}");
        let message = refused(&["head.*"]);
        assert!(
            message.contains("`head.weight` shares the values of `embedding.tokens.weight`"),
            "{message}"
        );
        let message = refused(&["encoder.[0"]);
        assert!(message.contains("encoder.[0 is not possible"), "{message}");
    }

    #[test]
    fn ranges_of_numbers_stand_between_dots() {
        let names: Vec<_> = (0..12).map(|layer| format!("layers.{layer}.mlp.weight")).collect();
        let of = |pattern: &str| -> Vec<usize> {
            let grouping = Grouping::new(&[ParameterGroup::matching(pattern)], &names, &[]).unwrap();
            (0..12).filter(|layer| grouping.of(&names[*layer]).is_some()).collect()
        };
        assert_eq!(of("layers.1-10.*"), (1..=10).collect::<Vec<_>>());
        assert_eq!(
            (of("*.0-0.mlp.*"), of("layers.1.*"), of("layers.[2-4].*")),
            (vec![0], vec![1], vec![2, 3, 4])
        );
        for (pattern, said) in [
            ("layers.3-2.*", "layers.3-2.* is not possible: `3-2` has no number"),
            ("layers.0-99999.*", "`0-99999` makes more than 10000 names"),
            ("layers.20-30.*", "it matches no parameter; there is `layers."),
        ] {
            let message =
                Grouping::new(&[ParameterGroup::matching(pattern)], &names, &[]).unwrap_err().to_string();
            assert!(message.contains(said), "{message}");
        }
    }

    #[test]
    fn what_is_frozen_twice_is_no_mistake() {
        let frozen = |pattern: &str| ParameterGroup {
            setting: "train.freeze",
            frozen: true,
            ..ParameterGroup::matching(pattern)
        };
        let groups = [frozen("encoder.*"), frozen("*.bias")];
        let grouping = Grouping::new(&groups, &names(), &[]).unwrap();
        assert!(
            grouping.is_frozen("encoder.0.linear.bias") && !grouping.is_frozen("embedding.tokens.weight")
        );
        let refused =
            |groups: &[ParameterGroup]| Grouping::new(groups, &names(), &[]).unwrap_err().to_string();
        let message = refused(&[frozen("encoder.*"), ParameterGroup::matching("*.bias")]);
        assert!(
            message.ends_with("all parameters that it matches belong to train.freeze = `encoder.*`"),
            "{message}"
        );
        assert!(
            refused(&[frozen("encodr.*")]).starts_with("train.freeze = encodr.* is not possible: it matches")
        );
    }

    #[test]
    fn values_that_are_no_numbers_are_refused() {
        let refused = |group: ParameterGroup| Grouping::new(&[group], &names(), &[]).unwrap_err().to_string();
        let all = || ParameterGroup::matching("*");
        let message = refused(ParameterGroup { learning_rate_factor: -1.0, ..all() });
        assert!(message.starts_with("optimizer.groups.learning_rate = -1 is not possible"), "{message}");
        let message = refused(ParameterGroup { weight_decay: Some(f32::NAN), ..all() });
        assert!(message.starts_with("optimizer.groups.weight_decay = NaN is not possible"), "{message}");
    }
}
