//! Options of `sbatch` that the user adds.

use crate::error::{Error, Result};

/// Options that cannot be added, and the option to give instead; without one, the script depends on its own value.
const OWN: [(&str, Option<&str>); 44] = [
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
    ("--requeue", None),
    ("--no-requeue", None),
    ("--exclusive", None),
    ("--array", None),
    ("-a", None),
    ("--wait", None),
    ("-W", None),
    ("--parsable", None),
];

/// Checks an option, as `--constraint=h100`.
pub fn check(option: &str) -> Result<()> {
    let wrong = |allowed: String| Err(Error::value("--option", option, allowed));
    let (name, value) = parts(option);
    let letters = name.trim_start_matches('-');
    if !name.starts_with('-')
        || name.starts_with("---")
        || !letters.starts_with(|c: char| c.is_ascii_alphabetic())
    {
        return wrong("it must be an option of sbatch, as in --constraint=h100".into());
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
        ] {
            let message = check(option).unwrap_err().to_string();
            assert!(message.starts_with("--option ") && message.contains(said), "{message}");
        }
        for option in [
            "--gres-flags=enforce-binding",
            "--ntasks-per-core=1",
            "--nodelist=a",
            "--mem=4G",
            "--wait-all-nodes=1",
        ] {
            check(option).unwrap();
        }
    }
}
