//! Values of Arrow's arrays as JSON.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use serde_json::{Map, Value};

/// The value in `row` of `array`; bytes are text. Otherwise, what is wrong with it, to be read after its column's name.
pub(super) fn value(array: &ArrayRef, row: usize) -> Result<Value, String> {
    if array.is_null(row) {
        return Ok(Value::Null);
    }
    macro_rules! number {
        ($kind:ty) => {
            array.as_primitive::<$kind>().value(row).into()
        };
    }
    Ok(match array.data_type() {
        DataType::Null => Value::Null,
        DataType::Boolean => array.as_boolean().value(row).into(),
        DataType::Int8 => number!(Int8Type),
        DataType::Int16 => number!(Int16Type),
        DataType::Int32 => number!(Int32Type),
        DataType::Int64 => number!(Int64Type),
        DataType::UInt8 => number!(UInt8Type),
        DataType::UInt16 => number!(UInt16Type),
        DataType::UInt32 => number!(UInt32Type),
        DataType::UInt64 => number!(UInt64Type),
        DataType::Float16 => array.as_primitive::<Float16Type>().value(row).to_f32().into(),
        DataType::Float32 => number!(Float32Type),
        DataType::Float64 => number!(Float64Type),
        DataType::Utf8 => array.as_string::<i32>().value(row).into(),
        DataType::LargeUtf8 => array.as_string::<i64>().value(row).into(),
        DataType::Utf8View => array.as_string_view().value(row).into(),
        DataType::Binary => text(array.as_binary::<i32>().value(row))?,
        DataType::LargeBinary => text(array.as_binary::<i64>().value(row))?,
        DataType::BinaryView => text(array.as_binary_view().value(row))?,
        DataType::List(_) => list(&array.as_list::<i32>().value(row))?,
        DataType::LargeList(_) => list(&array.as_list::<i64>().value(row))?,
        DataType::FixedSizeList(..) => list(&array.as_fixed_size_list().value(row))?,
        DataType::Struct(fields) => {
            let values = fields.iter().zip(array.as_struct().columns());
            let object = values.map(|(field, array)| Ok((field.name().clone(), value(array, row)?)));
            object.collect::<Result<Map<_, _>, String>>()?.into()
        }
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let key = value(&dictionary.keys().slice(row, 1), 0)?
                .as_u64()
                .and_then(|key| usize::try_from(key).ok());
            let key = key.filter(|key| *key < dictionary.values().len());
            value(dictionary.values(), key.ok_or("has a key that its dictionary lacks")?)?
        }
        other => return Err(format!("has values of type {other}, which is not supported")),
    })
}

fn text(bytes: &[u8]) -> Result<Value, String> {
    std::str::from_utf8(bytes).map(Value::from).map_err(|error| format!("is not UTF-8 text: {error}"))
}

fn list(array: &ArrayRef) -> Result<Value, String> {
    (0..array.len()).map(|row| value(array, row)).collect::<Result<Vec<_>, _>>().map(Value::from)
}
