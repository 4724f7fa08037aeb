use crate::map::SortedMap;

/// A key's place in a map, with a value or without; from [`SortedMap::entry`].
pub struct Entry<'a, K, V> {
    map: &'a mut SortedMap<K, V>,
    key: K,
    place: Result<usize, usize>,
}

impl<'a, K: Ord, V> Entry<'a, K, V> {
    pub(crate) fn new(map: &'a mut SortedMap<K, V>, key: K) -> Self {
        let place = map.place(&key);
        Self { map, key, place }
    }

    /// The value, after this one has been inserted if there was none.
    pub fn or_insert(self, value: V) -> &'a mut V {
        self.or_insert_with(|| value)
    }

    /// The value, after that of this function has been inserted if there was none.
    pub fn or_insert_with(self, value: impl FnOnce() -> V) -> &'a mut V {
        match self.place {
            Ok(place) => self.map.value_at(place),
            Err(place) => self.map.insert_at(place, self.key, value()),
        }
    }

    /// The value, after the default one has been inserted if there was none.
    pub fn or_default(self) -> &'a mut V
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }
}
