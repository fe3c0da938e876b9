//! Attribute types of nf_tables, which libc lacks: `NFTA_*` of `linux/netfilter/nf_tables.h` without
//! the prefix, and those of `linux/netfilter/nf_tables_compat.h` (`MATCH_*`).

pub const TABLE_NAME: u16 = 1;
pub const TABLE_FLAGS: u16 = 2;

pub const CHAIN_TABLE: u16 = 1;
pub const CHAIN_NAME: u16 = 3;
pub const CHAIN_HOOK: u16 = 4;
pub const CHAIN_POLICY: u16 = 5;
pub const CHAIN_TYPE: u16 = 7;

pub const HOOK_HOOKNUM: u16 = 1;
pub const HOOK_PRIORITY: u16 = 2;

pub const RULE_TABLE: u16 = 1;
pub const RULE_CHAIN: u16 = 2;
pub const RULE_EXPRESSIONS: u16 = 4;
pub const RULE_USERDATA: u16 = 7;

pub const SET_TABLE: u16 = 1;
pub const SET_NAME: u16 = 2;
pub const SET_FLAGS: u16 = 3;
pub const SET_KEY_TYPE: u16 = 4;
pub const SET_KEY_LEN: u16 = 5;
pub const SET_ID: u16 = 10;

pub const SET_ELEM_LIST_TABLE: u16 = 1;
pub const SET_ELEM_LIST_SET: u16 = 2;
pub const SET_ELEM_LIST_ELEMENTS: u16 = 3;
pub const SET_ELEM_LIST_SET_ID: u16 = 4;
pub const SET_ELEM_KEY: u16 = 1;
pub const SET_ELEM_FLAGS: u16 = 3;

pub const LIST_ELEM: u16 = 1;
pub const EXPR_NAME: u16 = 1;
pub const EXPR_DATA: u16 = 2;

pub const DATA_VALUE: u16 = 1;
pub const DATA_VERDICT: u16 = 2;
pub const VERDICT_CODE: u16 = 1;
pub const VERDICT_CHAIN: u16 = 2;

pub const META_DREG: u16 = 1;
pub const META_KEY: u16 = 2;

pub const PAYLOAD_DREG: u16 = 1;
pub const PAYLOAD_BASE: u16 = 2;
pub const PAYLOAD_OFFSET: u16 = 3;
pub const PAYLOAD_LEN: u16 = 4;

pub const BITWISE_SREG: u16 = 1;
pub const BITWISE_DREG: u16 = 2;
pub const BITWISE_LEN: u16 = 3;
pub const BITWISE_MASK: u16 = 4;
pub const BITWISE_XOR: u16 = 5;

pub const CMP_SREG: u16 = 1;
pub const CMP_OP: u16 = 2;
pub const CMP_DATA: u16 = 3;

pub const RANGE_SREG: u16 = 1;
pub const RANGE_OP: u16 = 2;
pub const RANGE_FROM_DATA: u16 = 3;
pub const RANGE_TO_DATA: u16 = 4;

pub const LOOKUP_SET: u16 = 1;
pub const LOOKUP_SREG: u16 = 2;
pub const LOOKUP_SET_ID: u16 = 4;
pub const LOOKUP_FLAGS: u16 = 5;

pub const IMMEDIATE_DREG: u16 = 1;
pub const IMMEDIATE_DATA: u16 = 2;

pub const REDIR_REG_PROTO_MIN: u16 = 1;

pub const MATCH_NAME: u16 = 1;
pub const MATCH_INFO: u16 = 3;
