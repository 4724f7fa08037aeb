//! Slurm's compressed lists.

/// The longest list that is read, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// The first host of a list such as `gpu[01-03,07],login1`: `gpu01`. The whole list is checked; several
/// brackets in a name (`rack[0-1]node[0-3]`) are allowed.
pub fn first_host(list: &str) -> Result<String, String> {
    if list.len() > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    let mut first = None;
    for name in split_outside_brackets(list)? {
        let host = expand_first(name)?;
        first.get_or_insert(host);
    }
    first.ok_or_else(|| "it is empty".into())
}

/// Splits at the commas that are not within brackets.
fn split_outside_brackets(list: &str) -> Result<Vec<&str>, String> {
    let (mut inside, mut start, mut parts) = (false, 0, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '[' if inside => return Err("a '[' within brackets".into()),
            ']' if !inside => return Err("a ']' without a '['".into()),
            '[' => inside = true,
            ']' => inside = false,
            ',' if !inside => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err("a '[' without a ']'".into());
    }
    parts.push(&list[start..]);
    Ok(parts)
}

/// The first name of `prefix[ranges]suffix...`, with its leading zeros.
fn expand_first(mut rest: &str) -> Result<String, String> {
    let mut host = String::new();
    while let Some((prefix, after)) = rest.split_once('[') {
        let (ranges, suffix) = after.split_once(']').ok_or("a '[' without a ']'")?;
        host.push_str(prefix);
        for (i, range) in ranges.split(',').enumerate() {
            let (low, high) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| {
                text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten()
            };
            match (number(low), number(high)) {
                (Some(l), Some(h)) if l <= h => {}
                _ => return Err(format!("{range:?} is not a range of numbers")),
            }
            if i == 0 {
                host.push_str(low);
            }
        }
        rest = suffix;
    }
    host.push_str(rest);
    if host.is_empty() { Err("a host without a name".into()) } else { Ok(host) }
}

/// The entry of node `node` in a list such as `2(x3),1`: 2 for nodes 0 to 2, 1 for node 3.
pub fn tasks_on_node(list: &str, mut node: usize) -> Option<usize> {
    for part in list.split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        let tasks = tasks.parse().ok()?;
        if node < times {
            return Some(tasks);
        }
        node -= times;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_first_host() {
        for (list, host) in [
            ("gpu[01-03,07],login1", "gpu01"),
            ("login1,gpu[01-03]", "login1"),
            ("node5", "node5"),
            ("rack[2-3]node[007-009].local", "rack2node007.local"),
            ("n[4]", "n4"),
        ] {
            assert_eq!(first_host(list).unwrap(), host);
        }
    }

    #[test]
    fn refuses_broken_lists() {
        for list in
            ["", "a,", "gpu[01-03", "gpu01]", "gpu[a-b]", "gpu[3-1]", "gpu[[1]]", "gpu[]", "a,b[1-]", "[+1]"]
        {
            assert!(first_host(list).is_err(), "{list}");
        }
    }

    #[test]
    fn counts_tasks_per_node() {
        let at = |node| tasks_on_node("2(x3),1", node);
        assert_eq!([at(0), at(2), at(3), at(4)], [Some(2), Some(2), Some(1), None]);
        assert_eq!(tasks_on_node("4", 0), Some(4));
        for broken in ["", "x", "2(x", "2(3)", "2(xz)"] {
            assert_eq!(tasks_on_node(broken, 0), None, "{broken}");
        }
    }
}
