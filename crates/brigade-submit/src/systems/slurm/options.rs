//! Options of `sbatch` that the user adds.

use crate::error::{Error, Result};

/// Options that cannot be added, and the option to give instead; without one, the script depends on its own value.
const OWN: [(&str, Option<&str>); 48] = [
    ("--job-name", Some("--name")),
    ("-J", Some("--name")),
    ("--nodes", Some("--nodes")),
    ("-N", Some("--nodes")),
    ("--gpus", Some("--gpus")),
    ("-G", Some("--gpus")),
    ("--gpus-per-node", Some("--gpus")),
    ("--gpus-per-socket", Some("--gpus")),
    ("--gpus-per-task", Some("--gpus")),
    ("--gres", Some("--gpus")),
    ("--partition", Some("--partition")),
    ("-p", Some("--partition")),
    ("--account", Some("--account")),
    ("-A", Some("--account")),
    ("--time", Some("--time")),
    ("-t", Some("--time")),
    ("--time-min", Some("--time")),
    ("--export", Some("--env")),
    ("--export-file", Some("--env")),
    ("--test-only", Some("--dry-run")),
    ("--switches", Some("--topology")),
    ("--signal", Some("--grace")),
    ("--ntasks", None),
    ("-n", None),
    ("--ntasks-per-node", None),
    ("--tasks-per-node", None),
    ("--ntasks-per-gpu", None),
    ("--ntasks-per-socket", None),
    ("--wrap", None),
    ("--output", None),
    ("-o", None),
    ("--error", None),
    ("-e", None),
    ("--open-mode", None),
    ("--chdir", None),
    ("-D", None),
    ("--no-kill", None),
    ("-k", None),
    ("--requeue", None),
    ("--no-requeue", None),
    ("--exclusive", None),
    ("--array", None),
    ("-a", None),
    ("--wait", None),
    ("-W", None),
    ("--parsable", None),
    ("--clusters", None),
    ("-M", None),
];

/// What the options change of what the script would ask for by itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    /// The GPUs, of which the user says the type.
    pub gpus: bool,
    /// The nodes are shared with jobs of the same user or group.
    pub exclusive: bool,
    /// The memory.
    pub memory: bool,
}

impl Replaced {
    /// Checks options, as `--constraint=h100`, of a job with this many GPUs on each node.
    pub fn by(options: &[String], gpus: usize) -> Result<Self> {
        let mut replaced = Self::default();
        for option in options {
            let (name, value) = parts(option);
            let value = value.trim_start_matches(['=', ' ']);
            let typed = typed_gpus(name, value);
            if let Some(count) = typed {
                let wrong = |allowed: String| Err(Error::value("--option", option, allowed));
                if count != gpus {
                    return wrong(format!("--gpus is {gpus}, so it must ask for {gpus}"));
                }
                if replaced.gpus {
                    return wrong("another --option asks for the GPUs already".into());
                }
            }
            replaced.gpus |= typed.is_some();
            let shares = name == "--exclusive" && matches!(value, "user" | "mcs");
            replaced.exclusive |= shares;
            replaced.memory |= name.starts_with("--mem") && !name.starts_with("--mem-bind");
            if typed.is_none() && !shares {
                check(option)?;
            }
        }
        Ok(replaced)
    }
}

/// The number of GPUs in `--gpus-per-node=TYPE:N`, or in a list of `--gres` with `gpu:TYPE:N`.
fn typed_gpus(name: &str, value: &str) -> Option<usize> {
    let is_word = |text: &str| {
        !text.is_empty()
            && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter))
    };
    let typed = |text: &str| {
        let (kind, count) = text.split_once(':')?;
        count.parse().ok().filter(|_| is_word(kind))
    };
    match name {
        "--gpus-per-node" => typed(value),
        "--gres" => {
            let is_gpu = |part: &&str| *part == "gpu" || part.starts_with("gpu:");
            let mut gpus = value.split(',').filter(is_gpu);
            let found = typed(gpus.next()?.strip_prefix("gpu:")?)?;
            let rest_is_plain =
                value.chars().all(|letter| is_word(&letter.to_string()) || ":,".contains(letter));
            Some(found).filter(|_| gpus.next().is_none() && rest_is_plain)
        }
        _ => None,
    }
}

/// Checks an option, as `--constraint=h100`.
fn check(option: &str) -> Result<()> {
    let wrong = |allowed: String| Err(Error::value("--option", option, allowed));
    let (name, value) = parts(option);
    let letters = name.trim_start_matches('-');
    if !name.starts_with('-')
        || name.starts_with("---")
        || !letters.starts_with(|c: char| c.is_ascii_alphabetic())
    {
        return wrong("it must be an option of sbatch, such as --constraint=h100".into());
    }
    if option.chars().any(|letter| letter.is_control() || letter == '"') {
        return wrong(
            "it must be one line without double quotes; the script adds quotes where they are needed".into(),
        );
    }
    if value.starts_with(' ') && value.trim_start().starts_with('-') {
        return wrong("it must be one option; give each with an --option of its own".into());
    }
    // sbatch takes the beginning of a long name, too.
    let is_own = |own: &str| own == name || (name.starts_with("--") && own.starts_with(name));
    match OWN.iter().find(|(own, _)| is_own(own)) {
        Some((_, Some("--gpus"))) => wrong(
            "give --gpus to brigade submit itself; with --option=--gres=gpu:TYPE:N or --option=--gpus-per-node=TYPE:N besides, they are of one \
             type"
                .into(),
        ),
        Some(("--exclusive", None)) => wrong(
            "the script itself sets --exclusive; give --exclusive=user or --exclusive=mcs, or --shared-nodes to brigade submit itself".into(),
        ),
        Some(("--clusters" | "-M", _)) => wrong(
            "the job would be followed and cancelled by its number on this cluster; submit from a host of the other one, or write the script with \
             --render DIR and give it to sbatch there"
                .into(),
        ),
        Some((_, Some(instead))) => wrong(format!("give {instead} to brigade submit itself")),
        Some((own, None)) => wrong(format!("the script itself sets {own}, or depends on its default")),
        None => Ok(()),
    }
}

/// The option as a line of a script has it: what would end the value, or the word, stands in quotes.
pub fn line(option: &str) -> String {
    let (name, value) = parts(option);
    let start = value.len() - value.trim_start_matches(['=', ' ']).len();
    let (sign, value) = value.split_at(start);
    match value.contains([' ', '#', '\'', '\\']) {
        true => format!("{name}{sign}\"{}\"", value.replace('\\', r"\\")),
        false => option.to_owned(),
    }
}

/// The name, and the rest with what is between them.
fn parts(option: &str) -> (&str, &str) {
    match option.starts_with("--") {
        true => option.split_at(option.find(['=', ' ']).unwrap_or(option.len())),
        // A letter, whose value may follow at once.
        false => option.split_at(option.char_indices().nth(2).map_or(option.len(), |(at, _)| at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_as_sbatch_reads_them() {
        for (option, said) in [
            ("--constraint=h100&ib", "--constraint=h100&ib"),
            ("--comment=my job", "--comment=\"my job\""),
            ("--comment=a=b c", "--comment=\"a=b c\""),
            ("--comment my job", "--comment \"my job\""),
            ("--comment=#1", "--comment=\"#1\""),
            ("--comment=it's", "--comment=\"it's\""),
            (r"--comment=a\b", r#"--comment="a\\b""#),
            ("--hold", "--hold"),
            ("-C h100", "-C h100"),
            ("-Ch100", "-Ch100"),
        ] {
            check(option).unwrap();
            assert_eq!(line(option), said);
        }
    }

    #[test]
    fn some_options_replace_what_the_script_asks_for() {
        let by = |options: &str, gpus| {
            let options: Vec<String> = options.split(' ').map(str::to_owned).collect();
            Replaced::by(&options, gpus).map_err(|error| error.to_string())
        };
        let gpus = Replaced { gpus: true, ..Replaced::default() };
        for options in ["--gres=gpu:h100:8", "--gres=nvme:1,gpu:h100-sxm:8", "--gpus-per-node=a100_80:8"] {
            assert_eq!(by(options, 8).unwrap(), gpus, "{options}");
        }
        for options in ["--mem=4G", "--mem-per-cpu=1G", "--mem-per-gpu=8G"] {
            assert_eq!(
                by(options, 8).unwrap(),
                Replaced { memory: true, ..Replaced::default() },
                "{options}"
            );
        }
        for options in ["--exclusive=user", "--exclusive=mcs"] {
            assert_eq!(by(options, 8).unwrap(), Replaced { exclusive: true, ..Replaced::default() });
        }
        assert_eq!(by("--mem-bind=local --hold", 8).unwrap(), Replaced::default());
        for (options, said) in [
            ("--gres=gpu:h100:4", "--gpus is 8, so it must ask for 8"),
            ("--gres=gpu:h100:8 --gpus-per-node=h100:8", "another --option asks for the GPUs already"),
            ("--gres=gpu:8", "give --gpus to brigade submit itself"),
            ("--gres=gpu", "give --gpus to brigade submit itself"),
            ("--gres=gpu:a:4,gpu:b:4", "give --gpus to brigade submit itself"),
            ("--gpus-per-node=8", "give --gpus to brigade submit itself"),
            ("--exclusive", "or --shared-nodes to brigade submit itself"),
            ("--exclusive=all", "or --shared-nodes to brigade submit itself"),
        ] {
            let message = by(options, 8).unwrap_err();
            assert!(message.contains(said), "{message}");
        }
    }

    #[test]
    fn what_the_script_sets_is_refused() {
        for (option, said) in [
            ("rm -r", "it must be an option of sbatch"),
            ("", "it must be an option of sbatch"),
            ("--", "it must be an option of sbatch"),
            ("--=a", "it must be an option of sbatch"),
            ("--comment=a\nb", "without double quotes"),
            ("--comment=\"a b\"", "without double quotes"),
            ("--hold --output=a", "an --option of its own"),
            ("--output=x.log", "the script itself sets --output"),
            ("--outp=x.log", "the script itself sets --output"),
            ("-ox.log", "the script itself sets -o"),
            ("-e x.log", "the script itself sets -e"),
            ("--requeue", "the script itself sets --requeue"),
            ("--time=5", "give --time to brigade submit itself"),
            ("-t 5", "give --time to brigade submit itself"),
            ("--job-name=a", "give --name to brigade submit itself"),
            ("--signal=INT@5", "give --grace to brigade submit itself"),
            ("--gres=gpu:8", "give --gpus to brigade submit itself"),
            ("--gpus-per-task=1", "give --gpus to brigade submit itself"),
            ("--time-min=5", "give --time to brigade submit itself"),
            ("--export=NONE", "give --env to brigade submit itself"),
            ("--test-only", "give --dry-run to brigade submit itself"),
            ("--ntasks-per-gpu=1", "the script itself sets --ntasks-per-gpu"),
            ("--wrap=true", "the script itself sets --wrap"),
            ("--clusters=b", "submit from a host of the other one"),
            ("--cluster b", "submit from a host of the other one"),
            ("-M b", "submit from a host of the other one"),
            ("-Mb", "submit from a host of the other one"),
        ] {
            let message = check(option).unwrap_err().to_string();
            assert!(message.starts_with("--option ") && message.contains(said), "{message}");
        }
        for option in [
            "--gres-flags=enforce-binding",
            "--cluster-constraint=b",
            "--ntasks-per-core=1",
            "--nodelist=a",
            "--mem=4G",
            "--wait-all-nodes=1",
        ] {
            check(option).unwrap();
        }
    }
}
