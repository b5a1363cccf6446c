//! A deserializer of plain JSON, see [`super::plain`].

use std::fmt;

use serde::de::value::BorrowedStrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::plain::Plain;

/// Reads one value.
pub(super) struct Reader<'p, 'a> {
    pub(super) plain: &'p mut Plain<'a>,
}

/// The value is one for serde_json, which says what is wrong with it, if anything is.
#[derive(Debug)]
pub(super) struct Unread;

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not read here")
    }
}

impl std::error::Error for Unread {}

impl Error for Unread {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }

    fn invalid_length(_: usize, _: &dyn serde::de::Expected) -> Self {
        Self
    }

    fn unknown_field(_: &str, _: &'static [&'static str]) -> Self {
        Self
    }
}

macro_rules! numbers {
    ($($method:ident),*) => {
        $(
            #[inline]
            fn $method<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Unread> {
                visitor.visit_u64(self.plain.number().ok_or(Unread)?)
            }
        )*
    };
}

macro_rules! texts {
    ($($method:ident),*) => {
        $(
            #[inline]
            fn $method<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Unread> {
                visitor.visit_borrowed_str(self.plain.text().ok_or(Unread)?)
            }
        )*
    };
}

impl<'a> Deserializer<'a> for Reader<'_, 'a> {
    type Error = Unread;

    numbers!(deserialize_u8, deserialize_u16, deserialize_u32, deserialize_u64);
    numbers!(deserialize_i8, deserialize_i16, deserialize_i32, deserialize_i64);
    texts!(deserialize_str, deserialize_string, deserialize_identifier);

    #[inline]
    fn deserialize_bool<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Unread> {
        if self.plain.goes_on("true") {
            visitor.visit_bool(true)
        } else if self.plain.goes_on("false") {
            visitor.visit_bool(false)
        } else {
            Err(Unread)
        }
    }

    #[inline]
    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Unread> {
        if self.plain.goes_on("null") { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    #[inline]
    fn deserialize_newtype_struct<V: Visitor<'a>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Unread> {
        visitor.visit_newtype_struct(self)
    }

    #[inline]
    fn deserialize_seq<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, Unread> {
        let mut list = Members::begin(self.plain, "[", b']').ok_or(Unread)?;
        let value = visitor.visit_seq(&mut list)?;
        list.all_read(value)
    }

    #[inline]
    fn deserialize_struct<V: Visitor<'a>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unread> {
        // serde_json's own types, such as `RawValue`, are more than they seem to be.
        if name.starts_with("$serde_json") {
            return Err(Unread);
        }
        let mut object = Members::begin(self.plain, "{", b'}').ok_or(Unread)?;
        let value = visitor.visit_map(&mut object)?;
        object.all_read(value)
    }

    /// One of the variants that have nothing in them.
    #[inline]
    fn deserialize_enum<V: Visitor<'a>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Unread> {
        let variant = self.plain.text().ok_or(Unread)?;
        visitor.visit_enum(BorrowedStrDeserializer::new(variant))
    }

    fn deserialize_any<V: Visitor<'a>>(self, _: V) -> Result<V::Value, Unread> {
        Err(Unread)
    }

    serde::forward_to_deserialize_any! {
        <W: Visitor<'a>>
        i128 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct map ignored_any
    }
}

/// The members of a list or an object.
struct Members<'p, 'a> {
    plain: &'p mut Plain<'a>,
    end: u8,
    /// Whether one was read.
    begun: bool,
    /// Whether the end was.
    ended: bool,
}

impl<'p, 'a> Members<'p, 'a> {
    #[inline]
    fn begin(plain: &'p mut Plain<'a>, begin: &str, end: u8) -> Option<Self> {
        plain.goes_on(begin).then_some(Self { plain, end, begun: false, ended: false })
    }

    /// Whether another member follows.
    #[inline]
    fn go_on(&mut self) -> Result<bool, Unread> {
        if self.ended {
            return Ok(false);
        }
        if self.plain.closes(self.end) {
            self.ended = true;
            return Ok(false);
        }
        if self.begun && !self.plain.goes_on(",") {
            return Err(Unread);
        }
        self.begun = true;
        Ok(true)
    }

    fn all_read<T>(&self, value: T) -> Result<T, Unread> {
        if self.ended { Ok(value) } else { Err(Unread) }
    }
}

impl<'a> SeqAccess<'a> for Members<'_, 'a> {
    type Error = Unread;

    #[inline]
    fn next_element_seed<T: DeserializeSeed<'a>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Unread> {
        if !self.go_on()? {
            return Ok(None);
        }
        seed.deserialize(Reader { plain: &mut *self.plain }).map(Some)
    }

    /// Mostly it is one.
    fn size_hint(&self) -> Option<usize> {
        Some(1)
    }
}

impl<'a> MapAccess<'a> for Members<'_, 'a> {
    type Error = Unread;

    #[inline]
    fn next_key_seed<K: DeserializeSeed<'a>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Unread> {
        if !self.go_on()? {
            return Ok(None);
        }
        seed.deserialize(Reader { plain: &mut *self.plain }).map(Some)
    }

    #[inline]
    fn next_value_seed<V: DeserializeSeed<'a>>(&mut self, seed: V) -> Result<V::Value, Unread> {
        if !self.plain.goes_on(":") {
            return Err(Unread);
        }
        seed.deserialize(Reader { plain: &mut *self.plain })
    }
}
