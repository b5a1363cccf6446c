//! A serializer that writes compact JSON.

use std::fmt;

use serde::Serialize;
use serde::ser::{Error, Impossible, Serializer};

use super::compound::Compound;
use super::text::{is_plain, put_known, put_name, put_number};

/// Writes one value.
pub(super) struct Writer<'a> {
    pub(super) out: &'a mut Vec<u8>,
}

/// The value is left to serde_json, because it is rare or has no JSON form.
#[derive(Debug)]
pub(super) struct Unwritten;

impl fmt::Display for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not written here")
    }
}

impl std::error::Error for Unwritten {}

impl Error for Unwritten {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

macro_rules! numbers {
    ($($method:ident: $number:ty),*) => {
        $(
            fn $method(self, number: $number) -> Result<(), Unwritten> {
                put_number(number, self.out);
                Ok(())
            }
        )*
    };
}

/// Forms that no message on a hot path has.
macro_rules! left_out {
    ($($method:ident($($kind:ty),*) -> $made:ty),* $(,)?) => {
        $(
            fn $method(self, $(_: $kind),*) -> Result<$made, Unwritten> {
                Err(Unwritten)
            }
        )*
    };
}

impl<'a> Serializer for Writer<'a> {
    type Ok = ();
    type Error = Unwritten;
    type SerializeSeq = Compound<'a>;
    type SerializeTuple = Impossible<(), Unwritten>;
    type SerializeTupleStruct = Impossible<(), Unwritten>;
    type SerializeTupleVariant = Impossible<(), Unwritten>;
    type SerializeMap = Impossible<(), Unwritten>;
    type SerializeStruct = Compound<'a>;
    type SerializeStructVariant = Compound<'a>;

    numbers! {
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64,
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64
    }

    left_out! {
        serialize_f32(f32) -> (),
        serialize_f64(f64) -> (),
        serialize_char(char) -> (),
        serialize_bytes(&[u8]) -> (),
        serialize_unit_struct(&'static str) -> (),
        serialize_map(Option<usize>) -> Self::SerializeMap,
        serialize_tuple(usize) -> Self::SerializeTuple,
        serialize_tuple_struct(&'static str, usize) -> Self::SerializeTupleStruct,
        serialize_tuple_variant(&'static str, u32, &'static str, usize)
            -> Self::SerializeTupleVariant,
    }
    fn serialize_bool(self, value: bool) -> Result<(), Unwritten> {
        if value {
            self.out.extend_from_slice(b"true");
        } else {
            self.out.extend_from_slice(b"false");
        }
        Ok(())
    }
    fn serialize_str(self, text: &str) -> Result<(), Unwritten> {
        if !is_plain(text) {
            return serde_json::to_writer(self.out, text).map_err(|_| Unwritten);
        }
        put_known(text, self.out);
        Ok(())
    }
    fn serialize_none(self) -> Result<(), Unwritten> {
        self.serialize_unit()
    }
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Unwritten> {
        value.serialize(self)
    }
    fn serialize_unit(self) -> Result<(), Unwritten> {
        self.out.extend_from_slice(b"null");
        Ok(())
    }
    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<(), Unwritten> {
        put_known(variant, self.out);
        Ok(())
    }
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<(), Unwritten> {
        value.serialize(self)
    }
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), Unwritten> {
        put_name(b'{', variant, self.out);
        value.serialize(Writer { out: &mut *self.out })?;
        self.out.push(b'}');
        Ok(())
    }
    fn serialize_seq(self, _: Option<usize>) -> Result<Compound<'a>, Unwritten> {
        Ok(Compound::list(self.out, b"]"))
    }
    fn serialize_struct(self, name: &'static str, _: usize) -> Result<Compound<'a>, Unwritten> {
        // Types of serde_json itself, such as `RawValue`, have a special meaning, so serde_json
        // writes them.
        if name.starts_with("$serde_json") {
            return Err(Unwritten);
        }
        Ok(Compound::object(self.out, b"}"))
    }
    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        _: usize,
    ) -> Result<Compound<'a>, Unwritten> {
        put_name(b'{', variant, self.out);
        Ok(Compound::object(self.out, b"}}"))
    }
}
