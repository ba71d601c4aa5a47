//! How requests are deserialized: where serde would accept too much or too little, and its errors in plain words. Also
//! the schema of an egress policy.

mod edit_distance;
mod egress;
mod explain;
pub mod keywords;
mod number;
mod object;
mod plain_type;
mod syntax;

pub use self::edit_distance::edit_distance;
pub use self::egress::{EgressSchema, host};
pub use self::explain::{explain, read, read_object};
pub use self::number::with_whole_numbers;
pub use self::object::{object, required_object};
pub use self::plain_type::{SERDE_WORDING, plain_parser_error};
pub use self::syntax::json_syntax_error;
