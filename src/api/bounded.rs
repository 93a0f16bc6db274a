//! Bounded lists: deserialising that stops at a limit.
//!
//! Lists of objects that users write, read no further than their bound: what comes by an API server that knows no bound
//! costs no more to read than what is refused. One entry beyond the bound is kept, so that whoever judges sees it.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Values in all entries of a list of free form.
const VALUES: usize = 1000;

/// A list of at most `MOST` entries and one more.
pub(crate) fn list<'de, D, T, const MOST: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(BoundedList::<T, MOST>(PhantomData))
}

/// The same, which may be left out.
pub(crate) fn optional_list<'de, D, T, const MOST: usize>(deserializer: D) -> Result<Option<Vec<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Inner<T, const MOST: usize>(Vec<T>);
    impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Inner<T, MOST> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            list::<D, T, MOST>(deserializer).map(Self)
        }
    }
    Ok(Option::<Inner<T, MOST>>::deserialize(deserializer)?.map(|Inner(list)| list))
}

struct BoundedList<T, const MOST: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for BoundedList<T, MOST> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut read = Vec::new();
        while read.len() <= MOST {
            match list.next_element()? {
                Some(entry) => read.push(entry),
                None => return Ok(read),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(read)
    }
}

/// A list of values of any form, of at most `MOST` entries and a thousand values in them. One that has more has more than
/// `MOST` entries when it was read.
pub(crate) fn values<'de, D: Deserializer<'de>, const MOST: usize>(deserializer: D) -> Result<Vec<Value>, D::Error> {
    struct Values<const MOST: usize>;
    impl<'de, const MOST: usize> Visitor<'de> for Values<MOST> {
        type Value = Vec<Value>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
            let (mut read, mut left) = (Vec::new(), VALUES);
            while read.len() <= MOST && left > 0 {
                match list.next_element_seed(Cut(&mut left))? {
                    Some(entry) => read.push(entry),
                    None => return Ok(read),
                }
            }
            while list.next_element::<IgnoredAny>()?.is_some() {}
            read.resize(MOST + 1, Value::Null);
            Ok(read)
        }
    }
    deserializer.deserialize_seq(Values::<MOST>)
}

/// A value of any form, which may be left out: its first thousand values.
pub(crate) fn value<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    let value = Cut(&mut { VALUES }).deserialize(deserializer)?;
    Ok((!value.is_null()).then_some(value))
}

/// Reads as many values as are left, and passes over the rest.
struct Cut<'a>(&'a mut usize);

impl<'de> DeserializeSeed<'de> for Cut<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if *self.0 == 0 {
            return deserializer.deserialize_any(IgnoredAny).map(|_| Value::Null);
        }
        *self.0 -= 1;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Cut<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut read = Vec::new();
        while *self.0 > 0 {
            match list.next_element_seed(Cut(self.0))? {
                Some(entry) => read.push(entry),
                None => return Ok(read.into()),
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(read.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut read = Map::new();
        while *self.0 > 0 {
            match map.next_key::<String>()? {
                Some(key) => drop(read.insert(key, map.next_value_seed(Cut(self.0))?)),
                None => return Ok(read.into()),
            }
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(read.into())
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    #[derive(Debug, Deserialize)]
    struct Sample {
        #[serde(default, deserialize_with = "super::list::<_, _, 3>")]
        typed: Vec<u32>,
        #[serde(default, deserialize_with = "super::optional_list::<_, _, 3>")]
        optional: Option<Vec<u32>>,
        #[serde(default, deserialize_with = "super::values::<_, 3>")]
        free: Vec<Value>,
        #[serde(default, deserialize_with = "super::value")]
        one: Option<Value>,
    }

    #[test]
    fn what_is_within_its_bound_is_read_as_it_is_and_what_is_beyond_shows() {
        let read = |value: Value| {
            let text = serde_json::from_str::<Sample>(&value.to_string()).unwrap();
            let tree = serde_json::from_value::<Sample>(value).unwrap();
            assert_eq!(format!("{text:?}"), format!("{tree:?}"));
            text
        };
        let within = json!([1, -1, 1.5, "x", null, true, [1], {"a": {"b": []}}]);
        let sample = read(json!({"typed": [1, 2, 3], "optional": [1], "free": [within, {}, 3], "one": within}));
        assert_eq!((sample.typed.len(), sample.optional, sample.one), (3, Some(vec![1]), Some(within.clone())));
        assert_eq!(sample.free, [within, json!({}), json!(3)]);
        let none = read(json!({"optional": null, "one": null}));
        assert_eq!((none.optional, none.one, none.typed.len(), none.free.len()), (None, None, 0, 0));

        let many: Vec<u32> = (0..20_000).collect();
        let cut = read(json!({"typed": many, "optional": many, "free": many, "one": many}));
        assert_eq!((cut.typed.len(), cut.optional.map(|list| list.len()), cut.free.len()), (4, Some(4), 4));
        assert_eq!(cut.one.unwrap().as_array().unwrap().len(), super::VALUES - 1);
        // One entry that is large by itself.
        assert_eq!(read(json!({"free": [{ "a": many }]})).free.len(), 4);
        assert!(serde_json::from_str::<Sample>(r#"{"free": 7}"#).is_err());
    }
}
