//! Texts that are secrets by their form, wherever they stand.

use super::names::is_secret_name;

/// How well-known secrets begin, the least number of characters that follow, and what they are.
const FORMS: [(&str, usize, &str); 12] = [
    ("hf_", 20, "a Hugging Face token"),
    ("AKIA", 16, "an AWS access key"),
    ("ASIA", 16, "an AWS access key"),
    ("AIza", 30, "a Google API key"),
    ("ghp_", 30, "a token of GitHub"),
    ("github_pat_", 30, "a token of GitHub"),
    ("glpat-", 20, "a token of GitLab"),
    ("sk-proj-", 20, "an OpenAI API key"),
    ("sk-", 32, "an API key"),
    ("xoxb-", 20, "a token of Slack"),
    ("ya29.", 20, "a Google access token"),
    ("-----BEGIN", 0, "a private key"),
];

/// What is in URLs and headers that give access by themselves, before a value that is no variable of a shell, in lower case, and what they are.
const PASSES: [(&str, &str); 13] = [
    ("x-amz-signature=", "a signed URL"),
    ("x-goog-signature=", "a signed URL"),
    ("?sig=", "a signed URL"),
    ("&sig=", "a signed URL"),
    ("authorization:", "a header with credentials"),
    ("cookie:", "a header with credentials"),
    ("bearer ", "a header with credentials"),
    ("hooks.slack.com/services/", WEBHOOK),
    ("discord.com/api/webhooks/", WEBHOOK),
    ("discordapp.com/api/webhooks/", WEBHOOK),
    (".webhook.office.com/", WEBHOOK),
    ("outlook.office.com/webhook/", WEBHOOK),
    ("api.telegram.org/bot", WEBHOOK),
];

const WEBHOOK: &str = "a webhook URL, to which anybody who knows it can post";

/// How the names of headers end that give access, in lower case, after another word.
const HEADERS: [&str; 2] = ["-key", "-token"];

/// Flags of `curl` whose value is a user and a password.
const USERS: [&str; 2] = ["--user", "--proxy-user"];

/// The same in one letter, which may follow letters that take no value, as in `-fsSu`.
const USER_LETTERS: [char; 2] = ['u', 'U'];
const WITHOUT_VALUE: &str = "#0123456aBfgGiIjJklLMnNOpqRsSvVZ";

/// Flags of `wget` and `curl` whose value is a password, or gives access like one.
const PASSWORDS: [&str; 5] =
    ["--password", "--http-password", "--ftp-password", "--proxy-password", "--oauth2-bearer"];

/// The flag of `curl` whose value is cookies, or the file with them.
const COOKIE: &str = "--cookie";

/// The first word of a command that holds a secret, and what it is: as [`looks_like_secret`], and by the flags of `curl` and `wget`, also in a script that a word is.
/// A variable of a shell is no secret.
pub fn secret_in_command(words: &[String]) -> Option<(usize, &'static str)> {
    let parts = || {
        words.iter().enumerate().flat_map(|(at, word)| word.split_whitespace().map(move |part| (at, part)))
    };
    let of_flags = parts().zip(parts().skip(1).chain([(0, "")])).find_map(|((at, part), (next, after))| {
        let is_given = |value: &str| !value.trim_matches(['"', '\'']).is_empty() && !value.contains('$');
        let user = |value: &str| value.contains(':') && is_given(value);
        let joined = |flag: &str| part.strip_prefix(flag)?.strip_prefix('=');
        let cookies = |value: &str| value.contains('=') && is_given(value);
        let letters = part.strip_prefix('-').and_then(|letters| letters.split_once(USER_LETTERS));
        let short = letters.filter(|(others, _)| others.chars().all(|other| WITHOUT_VALUE.contains(other)));
        let is_user = USERS.contains(&part) || short.is_some_and(|(_, value)| value.is_empty());
        let of_user = || USERS.iter().find_map(|flag| joined(flag)).or(short.map(|(_, value)| value));
        match () {
            () if is_user && user(after) => Some((next, "a user and a password")),
            () if of_user().is_some_and(user) => Some((at, "a user and a password")),
            () if part == COOKIE && cookies(after) => Some((next, "cookies")),
            () if joined(COOKIE).is_some_and(cookies) => Some((at, "cookies")),
            () if PASSWORDS.contains(&part) && is_given(after) => Some((next, "a password")),
            () if PASSWORDS.iter().any(|flag| joined(flag).is_some_and(is_given)) => Some((at, "a password")),
            () => None,
        }
    });
    let of_forms = words.iter().enumerate().find_map(|(at, word)| Some((at, looks_like_secret(word)?)));
    of_forms.or(of_flags)
}

/// Whether a text has a header such as `X-Api-Key: VALUE`.
fn has_header(lower: &str) -> bool {
    let of_names = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    lower.match_indices(':').any(|(at, _)| {
        let before = &lower[..at];
        let name = &before[before.rfind(|letter| !of_names(letter)).map_or(0, |end| end + 1)..];
        let value = lower[at + 1..].trim_start().trim_start_matches(['"', '\'']);
        let is_said = value.starts_with(|first: char| first.is_ascii_alphanumeric());
        is_said && !name.starts_with('-') && HEADERS.iter().any(|end| name.ends_with(end))
    })
}

/// Whether a part of a URL's query has the name of a secret, and is no variable of a shell.
fn has_query(url: &str) -> bool {
    let parts = url.split(['?', '&', ';', '#', '"', '\'', ' ']).skip(1);
    parts.filter_map(|part| part.split_once('=')).any(|(name, value)| {
        is_secret_name(name)
            && value.starts_with(|first: char| first.is_ascii_alphanumeric() || "/+-_%.~".contains(first))
    })
}

/// What a text holds that gives access by itself: a well-known kind of token, a signed URL, a password in one, or a header. `None` if it looks like nothing of
/// that kind.
///
/// ```
/// use brigade_launch::looks_like_secret;
/// assert_eq!(looks_like_secret("https://me:hidden@host/"), Some("a password in a URL"));
/// assert_eq!(looks_like_secret("https://host/runs"), None);
/// ```
pub fn looks_like_secret(text: &str) -> Option<&'static str> {
    let of_secrets = |letter: &char| letter.is_ascii_alphanumeric() || "_-".contains(*letter);
    let begins = |word: &str| {
        let long = |rest: &str, least| rest.chars().take_while(of_secrets).count() >= least;
        let known = FORMS
            .iter()
            .find(|(start, least, _)| word.strip_prefix(start).is_some_and(|rest| long(rest, *least)));
        // Two parts of a JSON Web Token are objects.
        let is_jwt = word.starts_with("eyJ") && word.contains(".eyJ");
        known.map(|(_, _, what)| *what).or_else(|| is_jwt.then_some("a JSON Web Token"))
    };
    let mut words = text.split(['=', ',', '"', '\'', ' ']);
    if let Some(what) = words.find_map(begins) {
        return Some(what);
    }
    let lower = text.to_ascii_lowercase();
    let is_given = |rest: &str| {
        let mut words = rest.split([' ', '"', '\'']).filter(|word| !["", "bearer", "basic"].contains(word));
        words.next().is_some_and(|word| !word.contains('$'))
    };
    let gives = |pass: &str| lower.match_indices(pass).any(|(at, _)| is_given(&lower[at + pass.len()..]));
    if let Some((_, what)) = PASSES.iter().find(|(pass, _)| gives(pass)) {
        return Some(what);
    }
    if has_header(&lower) {
        return Some("a header with credentials");
    }
    let (_, rest) = text.split_once("://")?;
    if has_query(rest) {
        return Some("a URL that gives access");
    }
    let authority = rest.split('/').next()?;
    let user = authority.rsplit_once('@')?.0;
    user.contains(':').then_some("a password in a URL")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(words: &[&str]) -> Option<(usize, &'static str)> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        secret_in_command(&words)
    }

    #[test]
    fn commands_that_give_access_are_known() {
        for (words, at) in [
            (&["curl", "-u", "user:pw", "https://host/"][..], 2),
            (&["curl", "--user=user:pw", "https://host/"], 1),
            (&["curl", "-uuser:pw", "https://host/"], 1),
            (&["sh", "-c", "curl --proxy-user user:pw https://host/"], 2),
            (&["wget", "--http-password", "pw", "https://host/"], 2),
            (&["wget", "--password=pw", "https://host/"], 1),
            (&["curl", "-fsSu", "user:pw", "https://host/"], 2),
            (&["curl", "-fsSuuser:pw", "https://host/"], 1),
            (&["sh", "-c", "curl -sSU user:pw https://host/"], 2),
            (&["curl", "--oauth2-bearer", "abc", "https://host/"], 2),
            (&["curl", "--oauth2-bearer=abc", "https://host/"], 1),
            (&["curl", "--cookie", "session=abc", "https://host/"], 2),
            (&["curl", "-H", "Cookie: session=abc", "https://host/"], 2),
            (&["curl", "https://host/?token=abc"], 1),
            (&["curl", "https://host/?a=1&api_key=abc"], 1),
            (&["sh", "-c", "curl 'https://host/?a=1;access_token=abc'"], 2),
            (&["curl", "-H", "X-Api-Key: abc", "https://host/"], 2),
            (&["curl", "--header=Private-Token:abc", "https://host/"], 1),
            (&["sh", "-c", "curl -H 'X-Auth-Token: abc' https://host/"], 2),
            (&["curl", "https://discord.com/api/webhooks/1/abc"], 1),
            (&["curl", "https://a.webhook.office.com/webhookb2/abc"], 1),
            (&["curl", "https://api.telegram.org/bot1:abc/sendMessage"], 1),
        ] {
            assert_eq!(found(words).map(|(at, _)| at), Some(at), "{words:?}");
        }
    }

    #[test]
    fn other_commands_are_not() {
        for words in [
            &["curl", "-u", "user", "https://host:8080/"][..],
            &["curl", "--config", "/run/secrets/curl", "https://host/"],
            &["sh", "-c", "curl -u \"$USER:$PASSWORD\" -H \"X-Api-Key: $KEY\" https://host/"],
            &["curl", "-H", "Content-Type: application/json", "https://host/key:1"],
            &["curl", "-Hsubject:run", "-fsS", "https://host/?tokenizer=bytes&max_tokens=4&token="],
            &["curl", "--cookie", "/run/secrets/jar", "https://host/"],
            &[
                "sh",
                "-c",
                "curl -H \"Authorization: Bearer $TOKEN\" -H \"Cookie: session=$SESSION\" https://host/",
            ],
            &["sh", "-c", "curl --oauth2-bearer \"$TOKEN\" \"https://host/?token=$TOKEN\""],
            &["notify", "-menu", "a:b", "-status", "url:x"],
            &["notify", "--user", "me", "-k", "--sort-key:a", "pad-token: <pad>"],
        ] {
            assert_eq!(found(words), None, "{words:?}");
        }
    }
}
