//! Arithmetic and functions: which exist, for which types, and how they fail.

use cel::common::ast::{CallExpr, Expr, IdedExpr};

use super::{
    build::Operand,
    check::{Checker, conversion_hint},
    error::{ExpressionError, FaultKind},
    inputs::{Scope, ValueType},
    program::{Arithmetic, Op, RealFunction, RealTest, Search},
};

type Checked = Result<Operand, ExpressionError>;

/// Every function, for the message about one that does not exist.
const FUNCTIONS: &str = "int, uint, double, size, has, startsWith, endsWith, contains, and math.greatest, least, abs, sign, \
                         ceil, floor, round, trunc, sqrt, isNaN, isInf, isFinite";

impl<'a> Checker<'a> {
    pub(super) fn negate(&mut self, a: &'a IdedExpr, at: usize, depth: usize) -> Checked {
        let a = self.operand(a, depth)?;
        match a.value {
            ValueType::Int => self.compute(Op::NegateInt(a.register), ValueType::Int, &[a], &[FaultKind::Overflow], at),
            ValueType::Double => {
                self.compute(Op::Real(RealFunction::Negate, a.register), ValueType::Double, &[a], &[], at)
            }
            other => Err(self.error(at, format!("`-` takes int or double, not {}", other.name()))),
        }
    }

    pub(super) fn arithmetic(
        &mut self,
        [a, b]: [&'a IdedExpr; 2],
        op: Arithmetic,
        symbol: &str,
        at: usize,
        depth: usize,
    ) -> Checked {
        let a = self.operand(a, depth)?;
        let b = self.operand(b, depth)?;
        self.combined(a, b, op, symbol, at)
    }

    fn combined(&mut self, a: Operand, b: Operand, op: Arithmetic, symbol: &str, at: usize) -> Checked {
        if a.value != b.value || !a.value.is_number() {
            let (a, b) = (a.value, b.value);
            let hint = conversion_hint(a, b);
            let message = format!("`{symbol}` takes two numbers of one type, not {} and {}{hint}", a.name(), b.name());
            return Err(self.error(at, message));
        }
        let overflow = [FaultKind::Overflow];
        let division = [FaultKind::DivisionByZero, FaultKind::Overflow];
        let raises: &[FaultKind] = match (op, a.value) {
            (Arithmetic::Remainder, ValueType::Double) => {
                return Err(self.error(at, "`%` takes int or uint, not double"));
            }
            (_, ValueType::Double) | (Arithmetic::Least | Arithmetic::Greatest, _) => &[],
            (Arithmetic::Divide | Arithmetic::Remainder, ValueType::UInt) => &division[..1],
            (Arithmetic::Divide | Arithmetic::Remainder, _) => &division,
            _ => &overflow,
        };
        let step = match a.value {
            ValueType::Int => Op::Int(op, a.register, b.register),
            ValueType::UInt => Op::UInt(op, a.register, b.register),
            _ => Op::Double(op, a.register, b.register),
        };
        self.compute(step, a.value, &[a, b], raises, at)
    }

    pub(super) fn function(&mut self, call: &'a CallExpr, at: usize, depth: usize) -> Checked {
        let name = call.func_name.as_str();
        let args = call.args.as_slice();
        match &call.target {
            None => match (name, args) {
                ("int" | "uint" | "double", [arg]) => self.conversion(name, arg, at, depth),
                ("size", [arg]) => self.size(arg, at, depth),
                ("int" | "uint" | "double" | "size", _) => Err(self.arity(name, 1, args.len(), at)),
                _ => Err(self.unknown_function(name, at)),
            },
            Some(target) if matches!(&target.expr, Expr::Ident(name) if name == "math") => {
                self.math(name, args, at, depth)
            }
            Some(target) => match (name, args) {
                ("startsWith", [arg]) => self.search(Search::StartsWith, name, [target, arg], at, depth),
                ("endsWith", [arg]) => self.search(Search::EndsWith, name, [target, arg], at, depth),
                ("contains", [arg]) => self.search(Search::Contains, name, [target, arg], at, depth),
                ("size", []) => self.size(target, at, depth),
                ("startsWith" | "endsWith" | "contains", _) => Err(self.arity(name, 1, args.len(), at)),
                ("size", _) => Err(self.arity(name, 0, args.len(), at)),
                _ => Err(self.unknown_function(name, at)),
            },
        }
    }

    fn unknown_function(&self, name: &str, at: usize) -> ExpressionError {
        self.error(at, format!("unknown function or method `{name}`; there are {FUNCTIONS}"))
    }

    fn arity(&self, name: &str, wanted: usize, given: usize, at: usize) -> ExpressionError {
        let plural = if wanted == 1 { "" } else { "s" };
        self.error(at, format!("{name}() takes {wanted} argument{plural}, not {given}"))
    }

    fn conversion(&mut self, name: &str, arg: &'a IdedExpr, at: usize, depth: usize) -> Checked {
        let a = self.operand(arg, depth)?;
        let register = a.register;
        let overflow = [FaultKind::Overflow];
        let (op, value, raises): (Op, ValueType, &[FaultKind]) = match (name, a.value) {
            ("int", ValueType::Int) | ("uint", ValueType::UInt) | ("double", ValueType::Double) => return Ok(a),
            ("int", ValueType::UInt) => (Op::UIntToInt(register), ValueType::Int, &overflow),
            ("int", ValueType::Double) => (Op::DoubleToInt(register), ValueType::Int, &overflow),
            ("uint", ValueType::Int) => (Op::IntToUInt(register), ValueType::UInt, &overflow),
            ("uint", ValueType::Double) => (Op::DoubleToUInt(register), ValueType::UInt, &overflow),
            ("double", ValueType::Int) => (Op::IntToDouble(register), ValueType::Double, &[]),
            ("double", ValueType::UInt) => (Op::UIntToDouble(register), ValueType::Double, &[]),
            (_, other) => return Err(self.error(at, format!("{name}() takes a number, not {}", other.name()))),
        };
        self.compute(op, value, &[a], raises, at)
    }

    /// A text of the request: searching one costs time, so it is done once, not for each candidate.
    fn request_text(&mut self, expr: &'a IdedExpr, name: &str, at: usize, depth: usize) -> Checked {
        let text = self.operand(expr, depth)?;
        if text.value != ValueType::Text {
            return Err(self.error(at, format!("{name}() takes strings, not {}", text.value.name())));
        }
        if text.scope != Scope::Request {
            let message = format!("{name}() takes texts of the request, not of a candidate; use `==` or `in`");
            return Err(self.error(at, message));
        }
        Ok(text)
    }

    fn search(
        &mut self,
        search: Search,
        name: &str,
        [text, wanted]: [&'a IdedExpr; 2],
        at: usize,
        depth: usize,
    ) -> Checked {
        let a = self.request_text(text, name, at, depth)?;
        let b = self.request_text(wanted, name, at, depth)?;
        let op = Op::Search(search, a.register, b.register);
        self.compute(op, ValueType::Bool, &[a, b], &[FaultKind::TextTooLong], at)
    }

    fn size(&mut self, text: &'a IdedExpr, at: usize, depth: usize) -> Checked {
        let a = self.request_text(text, "size", at, depth)?;
        self.compute(Op::Size(a.register), ValueType::Int, &[a], &[FaultKind::TextTooLong], at)
    }

    fn math(&mut self, name: &str, args: &'a [IdedExpr], at: usize, depth: usize) -> Checked {
        let full = format!("math.{name}");
        let extreme = match name {
            "greatest" => Some(Arithmetic::Greatest),
            "least" => Some(Arithmetic::Least),
            _ => None,
        };
        if let Some(op) = extreme {
            let Some((first, rest)) = args.split_first() else { return Err(self.arity(&full, 1, 0, at)) };
            let mut so_far = self.number(first, &full, at, depth)?;
            for arg in rest {
                let next = self.number(arg, &full, at, depth)?;
                so_far = self.combined(so_far, next, op, &full, at)?;
            }
            return Ok(so_far);
        }
        let function = match name {
            "ceil" => Some(RealFunction::Ceiling),
            "floor" => Some(RealFunction::Floor),
            "round" => Some(RealFunction::Round),
            "trunc" => Some(RealFunction::Truncate),
            "sqrt" => Some(RealFunction::SquareRoot),
            "abs" => Some(RealFunction::Absolute),
            "sign" => Some(RealFunction::Sign),
            _ => None,
        };
        let test = match name {
            "isNaN" => Some(RealTest::NotANumber),
            "isInf" => Some(RealTest::Infinite),
            "isFinite" => Some(RealTest::Finite),
            _ => None,
        };
        if function.is_none() && test.is_none() {
            return Err(self.unknown_function(&full, at));
        }
        let [arg] = args else { return Err(self.arity(&full, 1, args.len(), at)) };
        let a = self.number(arg, &full, at, depth)?;
        match (function, test, a.value) {
            (Some(RealFunction::Absolute), _, ValueType::Int) => {
                self.compute(Op::AbsoluteInt(a.register), ValueType::Int, &[a], &[FaultKind::Overflow], at)
            }
            (Some(function), _, ValueType::Double) => {
                self.compute(Op::Real(function, a.register), ValueType::Double, &[a], &[], at)
            }
            (_, Some(test), ValueType::Double) => {
                self.compute(Op::Test(test, a.register), ValueType::Bool, &[a], &[], at)
            }
            (_, _, other) => Err(self.error(at, format!("{full}() does not take {}; use double()", other.name()))),
        }
    }

    fn number(&mut self, expr: &'a IdedExpr, name: &str, at: usize, depth: usize) -> Checked {
        let operand = self.operand(expr, depth)?;
        if operand.value.is_number() {
            return Ok(operand);
        }
        Err(self.error(at, format!("{name}() takes numbers, not {}", operand.value.name())))
    }
}
