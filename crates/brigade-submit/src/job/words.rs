//! The words of a command line.

/// The arguments of a program. What stands after `--` is another program's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Words<'a> {
    pub all: &'a [String],
    pub has_subcommand: bool,
}

impl<'a> Words<'a> {
    /// Those before `--`.
    pub fn own(self) -> &'a [String] {
        let end = self.all.iter().position(|word| word == "--").unwrap_or(self.all.len());
        &self.all[..end]
    }

    pub fn subcommand(self) -> Option<&'a str> {
        self.all.first().map(String::as_str).filter(|_| self.has_subcommand)
    }

    /// The subcommand, if there is one, and the rest.
    pub fn parts(self) -> (&'a [String], &'a [String]) {
        self.all.split_at(usize::from(self.has_subcommand).min(self.all.len()))
    }

    pub fn has(self, flag: &str) -> bool {
        self.own().iter().any(|word| is(word, flag))
    }

    /// The value of a flag, given as `--flag value` or `--flag=value`.
    pub fn value(self, flag: &str) -> Option<&'a str> {
        let own = self.own();
        let at = own.iter().position(|word| is(word, flag))?;
        match own[at].split_once('=') {
            Some((_, value)) => Some(value),
            None => own.get(at + 1).map(String::as_str),
        }
    }

    /// The value of a flag, or else that of the setting that it stands for, given with `--set`.
    pub fn setting(self, flag: &str, name: &str) -> Option<&'a str> {
        self.value(flag).or_else(|| self.set(name))
    }

    /// The last value that `--set` gives to a setting, without the quotes of a text.
    pub fn set(self, name: &str) -> Option<&'a str> {
        let value = self.own().iter().rev().find_map(|word| {
            word.strip_prefix("--set=").unwrap_or(word).strip_prefix(name)?.trim_start().strip_prefix('=')
        });
        value.map(|value| value.trim().trim_matches(['"', '\'']))
    }

    /// All words but a flag and its value.
    pub fn without(self, flag: &str) -> Vec<String> {
        let mut all = self.all.to_vec();
        if let Some(at) = self.own().iter().position(|word| is(word, flag)) {
            let end = if all[at].contains('=') { at + 1 } else { at + 2 };
            all.drain(at..end.min(self.own().len()));
        }
        all
    }

    /// All words, with another value of a flag that is there.
    pub fn replaced(self, flag: &str, value: String) -> Vec<String> {
        let mut all = self.all.to_vec();
        if let Some(at) = self.own().iter().position(|word| is(word, flag)) {
            match all[at].contains('=') {
                true => all[at] = format!("{flag}={value}"),
                false if at + 1 < all.len() => all[at + 1] = value,
                false => {}
            }
        }
        all
    }
}

/// Whether a word is a flag, which may be spelled as torchrun's, with underscores.
fn is(word: &str, flag: &str) -> bool {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    name.starts_with("--") && name.replace('_', "-") == flag
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_program_alone_count() {
        let all: Vec<String> = "launch --tee --out=a -- prog --out b".split(' ').map(str::to_owned).collect();
        let words = Words { all: &all, has_subcommand: true };
        assert_eq!((words.subcommand(), words.value("--out")), (Some("launch"), Some("a")));
        assert!(words.has("--tee") && !words.has("--te") && !words.has("prog"));
        assert_eq!(words.replaced("--out", "c".into()).join(" "), "launch --tee --out=c -- prog --out b");
        assert_eq!(words.parts().0, ["launch"]);
        assert_eq!(words.without("--out").join(" "), "launch --tee -- prog --out b");
        assert_eq!(words.without("--in"), all);
        let all: Vec<String> =
            "train --nproc_per_node 4 --max_restarts=2".split(' ').map(str::to_owned).collect();
        let words = Words { all: &all, has_subcommand: true };
        assert_eq!((words.value("--nproc-per-node"), words.value("--max-restarts")), (Some("4"), Some("2")));
        let all: Vec<String> = "train --set=a.b=1 --set c.d=2".split(' ').map(str::to_owned).collect();
        let words = Words { all: &all, has_subcommand: true };
        assert_eq!((words.setting("--b", "a.b"), words.setting("--d", "c.d")), (Some("1"), Some("2")));
        assert_eq!(words.setting("--e", "a.e"), None);
        let all = ["--set", "a.b=1", "--set=a.b = '2'", "--", "--set=a.b=3"].map(str::to_owned);
        let words = Words { all: &all, has_subcommand: false };
        assert_eq!((words.set("a.b"), words.set("a")), (Some("2"), None));
    }
}
