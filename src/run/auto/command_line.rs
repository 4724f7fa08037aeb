//! Command lines without some options.

use std::ffi::{OsStr, OsString};

/// The arguments without options, which are followed by a value or have it after `=`, and without switches, which have none.
pub fn without(args: &[OsString], options: &[&str], switches: &[&str]) -> Vec<OsString> {
    let mut kept = Vec::with_capacity(args.len());
    let mut words = args.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if switches.contains(&&*text) || options.iter().any(|option| has_value(&text, option)) {
            continue;
        }
        if options.iter().any(|option| word == OsStr::new(option)) {
            words.next();
            continue;
        }
        kept.push(word.clone());
    }
    kept
}

/// Whether an option is among the arguments.
pub fn has_option(args: &[OsString], option: &str) -> bool {
    args.iter().any(|word| word == OsStr::new(option) || has_value(&word.to_string_lossy(), option))
}

/// Whether a word is the option with its value.
fn has_value(word: &str, option: &str) -> bool {
    word.strip_prefix(option).is_some_and(|rest| rest.starts_with('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_go_with_their_values() {
        let line = "train --steps 5 --set a=1 --out=x --steps-per 3 -q --set train.steps=4 --data a b";
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let kept = without(&args, &["--steps", "--out"], &["-q"]).join(OsStr::new(" "));
        assert_eq!(kept, OsString::from("train --set a=1 --steps-per 3 --set train.steps=4 --data a b"));
    }
}
