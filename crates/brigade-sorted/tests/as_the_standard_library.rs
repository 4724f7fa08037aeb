//! Each operation has the same result as on the standard library's map and set.

use std::collections::{BTreeMap, BTreeSet};

use brigade_sorted::{SortedMap, SortedSet};
use proptest::collection::vec;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Operation {
    Insert(u8, u32),
    Remove(u8),
    Count(u8),
    Retain(u32),
    Extend(Vec<(u8, u32)>),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        (any::<u8>(), any::<u32>()).prop_map(|(key, value)| Operation::Insert(key % 32, value)),
        any::<u8>().prop_map(|key| Operation::Remove(key % 32)),
        any::<u8>().prop_map(|key| Operation::Count(key % 32)),
        (2..9_u32).prop_map(Operation::Retain),
        vec((0..32_u8, any::<u32>()), 0..40).prop_map(Operation::Extend),
    ]
}

#[allow(clippy::unwrap_used)]
fn same(sorted: &SortedMap<String, u32>, expected: &BTreeMap<String, u32>) {
    assert!(sorted.iter().eq(expected));
    assert!(sorted.keys().rev().eq(expected.keys().rev()));
    assert!(sorted.values().eq(expected.values()));
    assert_eq!(sorted.len(), expected.len());
    assert_eq!(sorted.first_key_value(), expected.first_key_value());
    assert_eq!(sorted.last_key_value(), expected.last_key_value());
    for key in 0..33 {
        let key = format!("{key}");
        assert_eq!(sorted.get(&key), expected.get(&key));
        assert_eq!(sorted.get_key_value(&key), expected.get_key_value(&key));
        assert_eq!(sorted.contains_key(key.as_str()), expected.contains_key(&key));
    }
    let json = serde_json::to_string(sorted).unwrap();
    assert_eq!(json, serde_json::to_string(expected).unwrap());
    assert_eq!(serde_json::from_str::<SortedMap<String, u32>>(&json).unwrap(), *sorted);
    assert_eq!(format!("{sorted:?}"), format!("{expected:?}"));
}

proptest! {
    #[test]
    fn maps(operations in vec(operation(), 0..60)) {
        let (mut sorted, mut expected) = (SortedMap::new(), BTreeMap::new());
        for operation in operations {
            match operation {
                Operation::Insert(key, value) => {
                    let key = key.to_string();
                    prop_assert_eq!(sorted.insert(key.clone(), value), expected.insert(key, value));
                }
                Operation::Remove(key) => {
                    let key = key.to_string();
                    prop_assert_eq!(sorted.remove(key.as_str()), expected.remove(&key));
                }
                Operation::Count(key) => {
                    for count in [sorted.entry(key.to_string()).or_default(), expected.entry(key.to_string()).or_default()] {
                        *count = u32::wrapping_add(*count, 1);
                    }
                }
                Operation::Retain(divisor) => {
                    sorted.retain(|_, value| !value.is_multiple_of(divisor));
                    expected.retain(|_, value| !value.is_multiple_of(divisor));
                }
                Operation::Extend(entries) => {
                    sorted.extend(entries.iter().map(|(key, value)| (key.to_string(), *value)));
                    expected.extend(entries.iter().map(|(key, value)| (key.to_string(), *value)));
                }
            }
            same(&sorted, &expected);
        }
    }

    #[test]
    fn from_entries_in_any_order(entries in vec((any::<u8>(), any::<u32>()), 0..300)) {
        let sorted: SortedMap<u8, u32> = entries.iter().copied().collect();
        let expected: BTreeMap<u8, u32> = entries.into_iter().collect();
        prop_assert!(sorted.into_iter().eq(expected));
    }

    #[test]
    fn sets(items in vec(any::<u8>(), 0..300), removed in any::<u8>()) {
        let mut sorted: SortedSet<u8> = items.iter().copied().collect();
        let mut expected: BTreeSet<u8> = items.into_iter().collect();
        prop_assert_eq!(sorted.remove(&removed), expected.remove(&removed));
        prop_assert_eq!(sorted.contains(&removed), expected.contains(&removed));
        prop_assert_eq!(sorted.insert(7), expected.insert(7));
        prop_assert_eq!(sorted.first(), expected.first());
        prop_assert_eq!(sorted.last(), expected.last());
        let json = serde_json::to_string(&sorted).unwrap();
        prop_assert_eq!(&json, &serde_json::to_string(&expected).unwrap());
        prop_assert_eq!(&serde_json::from_str::<SortedSet<u8>>(&json).unwrap(), &sorted);
        prop_assert!((&sorted).into_iter().eq(&expected));
        prop_assert!(sorted.into_iter().eq(expected));
    }
}

#[test]
fn of_equal_keys_the_last_value_stays() {
    let map = SortedMap::from([("b", 1), ("a", 2), ("b", 3), ("a", 4), ("c", 5), ("b", 6)]);
    assert_eq!(map.into_iter().collect::<Vec<_>>(), [("a", 4), ("b", 6), ("c", 5)]);
}

#[test]
#[should_panic = "the map has no such key"]
fn a_missing_key_has_no_value() {
    let _ = SortedMap::from([("a", 1)])["b"];
}
