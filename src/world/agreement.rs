//! Texts that must be the same on all ranks, and texts gathered from all ranks.

use anyhow::{Context, bail};
use brigade_comm::Group;

/// The part of a configuration that must be the same on all ranks. The paths of results, caches and text may differ from host
/// to host; the text is compared by its content.
fn shared_part(config: &str) -> anyhow::Result<String> {
    let mut config: toml::Table = config.parse()?;
    config.remove("output");
    if let Some(data) = config.get_mut("data").and_then(toml::Value::as_table_mut) {
        data.retain(|key, _| !["cache_dir", "sources", "tokenizer"].contains(&key));
    }
    Ok(toml::to_string(&config)?)
}

/// Checks that all ranks have rank 0's configuration; each rank's error names who differs and where.
pub(crate) fn check_same_configuration(group: &Group, config: &str) -> anyhow::Result<()> {
    check_same(group, "configuration", &shared_part(config)?)
}

/// Checks that a text is the same on all ranks; each rank's error names who differs and where.
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
    let others: Vec<String> =
        (0..group.size()).filter(|rank| differs[*rank] == 1).map(|rank| rank.to_string()).collect();
    if others.is_empty() {
        return Ok(());
    }
    let first = String::from_utf8_lossy(&first);
    let line = first.lines().zip(text.lines()).find(|(theirs, ours)| theirs != ours);
    let detail = match line {
        Some((theirs, ours)) => format!("; here `{ours}`, on rank 0 `{theirs}`"),
        None => String::new(),
    };
    bail!("rank {} runs with another {what} than rank 0{detail}", others.join(", "))
}

/// Gathers a text from every rank, in the order of ranks; longer ones are cut.
pub(crate) fn all_gather_text(group: &Group, text: &str) -> brigade_comm::Result<Vec<String>> {
    let text = &text[..text.floor_char_boundary(MAX_GATHERED_BYTES)];
    let mut lengths = vec![0i64; group.size()];
    lengths[group.rank()] = text.len() as i64;
    group.all_gather_in_place(&mut lengths)?;
    let length = |rank: usize| usize::try_from(lengths[rank]).unwrap_or(0).min(MAX_GATHERED_BYTES);
    let longest = (0..group.size()).map(length).max().unwrap_or(0);
    let mut all = vec![0u8; longest * group.size()];
    all[longest * group.rank()..][..text.len()].copy_from_slice(text.as_bytes());
    group.all_gather_in_place(&mut all)?;
    let text = |rank: usize| String::from_utf8_lossy(&all[longest * rank..][..length(rank)]).into_owned();
    Ok((0..group.size()).map(text).collect())
}

/// Longest text that is gathered.
const MAX_GATHERED_BYTES: usize = 1 << 16;

/// Longest text that is compared.
const MAX_TEXT_BYTES: usize = 1 << 20;
