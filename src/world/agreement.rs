//! Texts that must be the same on all ranks, and texts gathered from all ranks.

use anyhow::{Context, bail};
use brigade_comm::Group;

/// The part of a configuration that must be the same on all ranks. The paths of results, caches and text, and the names of network
/// interfaces, may differ from host to host; the text is compared by its content.
fn shared_part(config: &str) -> anyhow::Result<String> {
    let mut config: toml::Table = config.parse()?;
    config.remove("output");
    if let Some(data) = config.get_mut("data").and_then(toml::Value::as_table_mut) {
        data.retain(|key, _| !["cache_dir", "sources", "tokenizer"].contains(&key));
    }
    if let Some(comm) = config.get_mut("comm").and_then(toml::Value::as_table_mut) {
        comm.remove("interfaces");
    }
    Ok(toml::to_string(&config)?)
}

/// The part of a configuration that must be the same on separately launched workers.
pub(crate) fn shared_by_workers(config: &str) -> anyhow::Result<String> {
    let mut config: toml::Table = shared_part(config)?.parse()?;
    for section in ["checkpoint", "comm", "profile"] {
        config.remove(section);
    }
    if let Some(strategy) = config.get_mut("strategy").and_then(toml::Value::as_table_mut) {
        strategy.retain(|key, _| !["coordinator", "listen", "worker"].contains(&key));
    }
    Ok(toml::to_string(&config)?)
}

/// Checks that all ranks have rank 0's configuration; all ranks' errors name who differs, and where the first of them does.
pub(crate) fn check_same_configuration(group: &Group, config: &str) -> anyhow::Result<()> {
    check_same(group, "configuration", &shared_part(config)?)
}

/// Checks that a text is the same on all ranks; all ranks' errors name who differs, and where the first of them does.
pub(crate) fn check_same(group: &Group, what: &str, text: &str) -> anyhow::Result<()> {
    let mut length = [text.len() as i64];
    group.broadcast_in_place(&mut length, 0)?;
    let length = usize::try_from(length[0]).ok().filter(|length| *length <= MAX_TEXT_BYTES);
    let length = length.with_context(|| format!("rank 0's {what} is longer than {MAX_TEXT_BYTES} bytes"))?;
    let mut first = text.as_bytes().to_vec();
    first.resize(length, 0);
    group.broadcast_in_place(&mut first, 0)?;

    let mut differs = vec![0u8; group.size()];
    differs[group.rank()] = u8::from(first != text.as_bytes());
    group.all_gather_in_place(&mut differs)?;
    let others: Vec<usize> = (0..group.size()).filter(|rank| differs[*rank] == 1).collect();
    let Some(other) = others.first() else { return Ok(()) };
    let first = String::from_utf8_lossy(&first);
    // The shorter text ends in lines that are not there.
    let [theirs, ours] = [&*first, text].map(|text| text.lines().map(Some).chain(std::iter::repeat(None)));
    let in_both = first.lines().count().max(text.lines().count());
    let line = theirs.zip(ours).take(in_both).find(|(theirs, ours)| theirs != ours);
    let named = |line: Option<&str>| line.map_or("nothing more".to_owned(), |line| format!("`{line}`"));
    let detail = match line {
        Some((theirs, ours)) => format!("; on rank {other} {}, on rank 0 {}", named(ours), named(theirs)),
        None => String::new(),
    };
    // Ranks that do not differ cannot see where the others do.
    let details = all_gather_text(group, &detail)?;
    let names: Vec<String> = others.iter().map(usize::to_string).collect();
    let is_plural = what.split(' ').next().is_some_and(|word| word.ends_with('s'));
    let different = if is_plural { "different" } else { "a different" };
    bail!("rank {} runs with {different} {what} from rank 0{}", names.join(", "), details[*other])
}

/// Gathers a text from every rank, in the order of ranks; longer ones than 64 KiB are cut.
pub(crate) fn all_gather_text(group: &Group, text: &str) -> brigade_comm::Result<Vec<String>> {
    let text = &text[..text.floor_char_boundary(MAX_GATHERED_BYTES)];
    let lengths = all_gather_lengths(group, text)?;
    all_gather_bytes(group, text, &lengths.map(|length| length.min(MAX_GATHERED_BYTES)).collect::<Vec<_>>())
}

/// Gathers a text from every rank, in the order of ranks, none of which may be longer than 16 MiB.
pub(crate) fn all_gather_whole_text(group: &Group, text: &str) -> anyhow::Result<Vec<String>> {
    let lengths: Vec<usize> = all_gather_lengths(group, text)?.collect();
    match lengths.iter().position(|length| *length > MAX_WHOLE_BYTES) {
        Some(rank) => bail!(
            "rank {rank} has a text of {} bytes for the others, which may have {MAX_WHOLE_BYTES}",
            lengths[rank]
        ),
        None => Ok(all_gather_bytes(group, text, &lengths)?),
    }
}

fn all_gather_lengths(group: &Group, text: &str) -> brigade_comm::Result<impl Iterator<Item = usize>> {
    let mut lengths = vec![0i64; group.size()];
    lengths[group.rank()] = text.len() as i64;
    group.all_gather_in_place(&mut lengths)?;
    Ok(lengths.into_iter().map(|length| usize::try_from(length).unwrap_or(0)))
}

fn all_gather_bytes(group: &Group, text: &str, lengths: &[usize]) -> brigade_comm::Result<Vec<String>> {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let mut all = vec![0u8; longest * group.size()];
    all[longest * group.rank()..][..text.len()].copy_from_slice(text.as_bytes());
    group.all_gather_in_place(&mut all)?;
    let texts = lengths.iter().enumerate().map(|(rank, length)| &all[longest * rank..][..*length]);
    Ok(texts.map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect())
}

/// Longest text that is gathered in part.
const MAX_GATHERED_BYTES: usize = 1 << 16;

/// Longest text that is gathered whole.
const MAX_WHOLE_BYTES: usize = 1 << 24;

/// Longest text that is compared.
const MAX_TEXT_BYTES: usize = MAX_WHOLE_BYTES;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn hosts_may_name_their_interfaces_and_nothing_else_of_their_network() {
        let shared = |interfaces: &str, transport: &str| {
            shared_part(&format!("[comm]\ninterfaces = [{interfaces}]\ntransport = \"{transport}\"\n"))
                .unwrap()
        };
        assert_eq!(shared("\"eth0\"", "tcp"), shared("\"ens3\", \"ens4\"", "tcp"));
        assert_ne!(shared("", "tcp"), shared("", "auto"));
    }
}
