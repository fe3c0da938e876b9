//! Attribute types of nf_tables, which the crate `libc` lacks. These are the constants `NFTA_*` of
//! `linux/netfilter/nf_tables.h` and `linux/netfilter/nf_tables_compat.h` (`MATCH_*`), without the
//! prefix.

/// Defines the types of each enumeration in brackets, numbered from 1. `_` stands for a type that
/// is not used here.
macro_rules! types {
    ($([$($name:tt)*])*) => { $(types!(@ 1, $($name)*);)* };
    (@ $number:expr,) => {};
    (@ $number:expr, _ $($more:tt)*) => { types!(@ $number + 1, $($more)*); };
    (@ $number:expr, $name:ident $($more:tt)*) => {
        pub const $name: u16 = $number;
        types!(@ $number + 1, $($more)*);
    };
}

types! {
    [TABLE_NAME TABLE_FLAGS]
    [CHAIN_TABLE _ CHAIN_NAME CHAIN_HOOK CHAIN_POLICY _ CHAIN_TYPE]
    [HOOK_HOOKNUM HOOK_PRIORITY]
    [RULE_TABLE RULE_CHAIN _ RULE_EXPRESSIONS _ _ RULE_USERDATA]
    [SET_TABLE SET_NAME SET_FLAGS SET_KEY_TYPE SET_KEY_LEN _ _ _ _ SET_ID]
    [SET_ELEM_LIST_TABLE SET_ELEM_LIST_SET SET_ELEM_LIST_ELEMENTS SET_ELEM_LIST_SET_ID]
    [SET_ELEM_KEY _ SET_ELEM_FLAGS]
    [LIST_ELEM]
    [EXPR_NAME EXPR_DATA]
    [DATA_VALUE DATA_VERDICT]
    [VERDICT_CODE VERDICT_CHAIN]
    [META_DREG META_KEY]
    [PAYLOAD_DREG PAYLOAD_BASE PAYLOAD_OFFSET PAYLOAD_LEN]
    [BITWISE_SREG BITWISE_DREG BITWISE_LEN BITWISE_MASK BITWISE_XOR]
    [CMP_SREG CMP_OP CMP_DATA]
    [RANGE_SREG RANGE_OP RANGE_FROM_DATA RANGE_TO_DATA]
    [LOOKUP_SET LOOKUP_SREG _ LOOKUP_SET_ID LOOKUP_FLAGS]
    [IMMEDIATE_DREG IMMEDIATE_DATA]
    [REDIR_REG_PROTO_MIN]
    [NAT_TYPE NAT_FAMILY NAT_REG_ADDR_MIN _ NAT_REG_PROTO_MIN]
    [MATCH_NAME _ MATCH_INFO]
}
