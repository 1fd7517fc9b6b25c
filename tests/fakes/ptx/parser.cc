/* Reads PTX as nvcc writes it. What this file and the table of instructions do not know is an error that names it. */
#include "counts.h"
#include "ptx.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <string_view>

typedef std::string_view View;

/* A statement up to its semicolon: @guard name operands. An operand is a list of words, of which brackets, +, | and
 * spaces are no part: "{%r1, %r2}, [%rd3+8], %p1|%p2" is three operands of two words each. */
struct Statement {
    View whole, guard, name;
    std::vector<std::vector<View>> operands;

    explicit Statement(View v) : whole(v)
    {
        static const char *const between = " \t\r\n,|+{}[]()";
        bool fresh = true;                      /* the next word begins an operand */
        int depth = 0;

        for (size_t at = 0, end; at < v.size(); at = end) {
            end = std::min(v.find_first_of(between, at), v.size());
            if (end == at) {
                depth += (strchr("{[(", v[at]) != NULL) - (strchr("}])", v[at]) != NULL);
                fresh |= v[at] == ',' && depth == 0;
                end++;
            } else if (v[at] == '@') {
                guard = v.substr(at + 1, end - at - 1);
            } else if (name.empty()) {
                name = v.substr(at, end - at);
            } else {
                if (fresh)
                    operands.emplace_back();
                operands.back().push_back(v.substr(at, end - at));
                fresh = false;
            }
        }
    }
};

static bool starts_with(View v, View with)
{
    return v.substr(0, with.size()) == with;
}

static int64_t integer(View v)
{
    const std::string text(v);

    return text[0] == '-' ? strtoll(text.c_str(), NULL, 0) : (int64_t)strtoull(text.c_str(), NULL, 0);
}

/* Bytes of a type as u8, s32, bf16x2; 1 for pred; 0: no type. */
static int type_bytes(View type)
{
    const size_t digit = type.find_first_of("0123456789");
    const View kind = type.substr(0, digit);

    if (type == "pred")
        return 1;
    if (digit == View::npos || (kind != "u" && kind != "s" && kind != "b" && kind != "f" && kind != "bf"))
        return 0;
    return atoi(type.data() + digit) / 8 * (type.find('x') != View::npos ? 2 : 1);
}

/* A declaration of a parameter or of shared memory: [.align A] .type name[count] */
struct Declared {
    View name;
    int align, bytes;                           /* bytes: 0 for name[], whose size the launch gives */
};

static Declared declaration(const std::vector<View> &words)
{
    const size_t at = words[0] == ".align" ? 2 : 0;
    const int size = type_bytes(words[at].substr(1));
    const bool counted = isdigit((unsigned char)words.back()[0]);
    const bool array = counted || words.back().end()[0] == '[';

    return {words[words.size() - 1 - counted], at ? (int)integer(words[1]) : size,
            size * (counted ? (int)integer(words.back()) : !array)};
}

struct Register {
    uint32_t at;
    int width;
};

struct Parser {
    Kernel &k;
    std::map<View, Register> registers;         /* %r of "%r<10>", or a whole name */
    std::map<std::pair<int, uint64_t>, uint32_t> constants;
    std::map<View, int64_t> shared;             /* addresses; -1: after the static ones */
    std::map<View, int> labels;
    std::vector<std::pair<size_t, View>> branches;
    uint32_t file = 0, line = 0;
    View statement;

    [[noreturn]] void unknown(const char *what, View v)
    {
        simulated_error("%s:%u (%s): the simulator does not know the %s \"%.*s\" in \"%.*s\"", k.source(file), line,
                        k.name.c_str(), what, (int)v.size(), v.data(), (int)statement.size(), statement.data());
    }

    static int bytes_of(int width)              /* of a register's 32 lanes */
    {
        return width == 1 ? 64 : LANES * width;
    }

    uint32_t new_register(int width)
    {
        k.file_bytes += bytes_of(width);
        return k.file_bytes - bytes_of(width);
    }

    void declare_registers(const Statement &s)  /* .reg .b32 %r<10>; or .reg .b16 low, high; */
    {
        const int width = type_bytes(s.operands[0][0].substr(1));

        for (const std::vector<View> &words : s.operands) {
            const View name = words.back();
            const size_t angle = name.find('<');
            registers[name.substr(0, angle)] = {k.file_bytes, width};
            k.file_bytes += bytes_of(width) * (angle == View::npos ? 1 : integer(name.substr(angle + 1)));
        }
    }

    void declare_shared(const std::vector<View> &words)
    {
        const Declared d = declaration(words);

        if (d.bytes) {
            k.static_shared = (k.static_shared + d.align - 1) / d.align * d.align;
            shared[d.name] = k.static_shared;
            k.static_shared += d.bytes;
        } else {
            shared[d.name] = -1;
        }
    }

    Register find_register(View name)           /* width 0: none */
    {
        const size_t digits = name.find_last_not_of("0123456789") + 1;
        auto found = registers.find(name);

        if (found != registers.end())
            return found->second;
        found = registers.find(name.substr(0, digits));
        if (found == registers.end() || digits == name.size())
            return {0, 0};
        const Register r = found->second;
        return {r.at + atoi(name.data() + digits) * bytes_of(r.width), r.width};
    }

    /* A register, a number or the address of shared memory, as a register of that width. */
    uint32_t operand(View v, int width)
    {
        static const View specials[SPECIALS] = {"%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z",
                                                "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y",
                                                "%nctaid.z", "%laneid", "%warpid"};
        const Register r = find_register(v);
        uint64_t value;

        if (r.width == width)
            return r.at;
        if (v == "_")                           /* a result that nobody reads */
            return new_register(width);
        for (int i = 0; i < SPECIALS; i++)
            if (v == specials[i])
                return k.special[i] ? k.special[i] : k.special[i] = new_register(4);
        if (shared.count(v))
            value = shared[v] >= 0 ? shared[v] : (k.static_shared + 127) / 128 * 128;
        else if (starts_with(v, "0f") || starts_with(v, "0d"))          /* the bits of a number */
            value = strtoull(v.data() + 2, NULL, 16);
        else if (isdigit((unsigned char)v[0]) || v[0] == '-')
            value = width == 1 ? (integer(v) ? ~0u : 0) : integer(v);
        else
            unknown(r.width ? "use of a register of another width" : "operand", v);
        uint32_t &at = constants[{width, value}];
        if (!at) {
            at = new_register(width);
            k.constants.push_back({at, width, value});
        }
        return at;
    }

    /* [register + offset], [name + offset] */
    uint32_t address(Instruction &i, const std::vector<View> &words)
    {
        const int width = find_register(words[0]).width;

        i.offset = words.size() > 1 ? integer(words[1]) : 0;
        if (i.space != PARAMETERS) {
            i.address_width = width ? width : i.space == SHARED ? 4 : 8;
            return operand(words[0], i.address_width);
        }
        for (const Parameter &p : k.parameters)
            if (words[0] == p.name) {
                i.offset += p.offset;
                return 0;
            }
        unknown("parameter", words[0]);
    }

    bool decode_family(Instruction &i, const Statement &s);
    void decode(const Statement &s);
    void parse(const Module &module);
};

/* Instructions whose operands are no plain registers of the types that their name gives. */
bool Parser::decode_family(Instruction &i, const Statement &s)
{
    const auto &o = s.operands;
    const View n = s.name, last = n.substr(n.rfind('.') + 1);
    const std::string dotted = std::string(n) + ".";
    const auto has = [&](const char *part) { return dotted.find(std::string(".") + part + ".") != std::string::npos; };

    if (starts_with(n, "ld.") || starts_with(n, "st.")) {
        const bool loads = n[0] == 'l';
        const auto &values = o[!loads];
        i.run = loads ? load : store;
        i.space = has("global") ? GLOBAL : has("shared") ? SHARED : has("param") ? PARAMETERS : GENERIC;
        i.count = values.size(), i.bytes = type_bytes(last), i.flag = last[0] == 's';
        if (has("local") || has("const") || has("relaxed") || has("acquire") || has("release") || !i.bytes)
            return false;
        i.from[0] = address(i, o[loads]);
        i.width = find_register(values[0]).width ? find_register(values[0]).width : i.bytes;    /* may be wider */
        for (int v = 0; v < i.count; v++)
            (loads ? i.to[v] : i.from[1 + v]) = operand(values[v], i.width);
    } else if (starts_with(n, "mov.") && o[0].size() + o[1].size() > 2) {
        const bool packs = o[1].size() > 1;
        i.count = o[packs].size(), i.width = type_bytes(last), i.bytes = i.width / i.count;
        i.run = packs ? pack : unpack;
        (packs ? i.to : i.from)[0] = operand(o[!packs][0], i.width);
        for (int v = 0; v < i.count; v++)
            (packs ? i.from : i.to)[v] = operand(o[packs][v], i.bytes);
    } else if (n == "bra" || n == "bra.uni") {
        i.control = BRANCH;
        branches.push_back({k.code.size(), o[0][0]});
    } else if (n == "ret" || n == "exit") {
        i.control = RETURN;
    } else if (n == "bar.sync" && o[0][0] == "0" && o.size() == 1) {
        i.control = BARRIER;
    } else if (n == "bar.red.or.pred" && o[1][0] == "0" && o.size() == 3) {
        i.control = BARRIER;
        i.to[0] = operand(o[0][0], 1), i.from[0] = operand(o[2][0], 1);
    } else if (n == "bar.warp.sync") {
        i.run = warp_barrier;
        i.from[0] = operand(o[0][0], 4);
    } else if (starts_with(n, "shfl.sync.")) {
        i.run = shuffle;
        i.offset = n[10];                       /* up, down, bfly, idx */
        i.to[0] = operand(o[0][0], 4), i.to[1] = o[0].size() > 1 ? operand(o[0][1], 1) : 0;
        for (int x = 0; x < 4; x++)
            i.from[x] = operand(o[1 + x][0], 4);
    } else if (n == "vote.sync.any.pred" || n == "vote.sync.all.pred" || n == "vote.sync.ballot.b32") {
        i.run = vote;
        i.offset = n[11];                       /* any, all, ballot: n, l, a */
        i.to[0] = operand(o[0][0], last == "b32" ? 4 : 1);
        i.from[0] = operand(o[1][0], 1), i.from[1] = operand(o[2][0], 4);
    } else if (n == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
               || n == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") {
        i.run = has("f16") ? multiply_add_f16 : multiply_add_bf16;
        for (int r = 0; r < 4; r++) {           /* sum = left times right + old sum */
            i.to[r] = operand(o[0][r], 4), i.from[r] = operand(o[1][r], 4);
            i.from[6 + r] = operand(o[3][r], 4);
        }
        for (int r = 0; r < 2; r++)
            i.from[4 + r] = operand(o[2][r], 4);
    } else if (starts_with(n, "ldmatrix.sync.aligned.m8n8.x4.") && last == "b16") {
        i.run = load_matrices;
        i.space = SHARED, i.flag = has("trans");
        for (int r = 0; r < 4; r++)
            i.to[r] = operand(o[0][r], 4);
        i.from[0] = address(i, o[1]);
    } else if (n == "cp.async.commit_group") {
        i.run = copies_commit;
    } else if (n == "cp.async.wait_all" || n == "cp.async.wait_group") {
        i.run = copies_wait;
        i.flag = o.empty(), i.offset = i.flag ? 0 : integer(o[0][0]);
    } else if (n == "cp.async.cg.shared.global" || n == "cp.async.ca.shared.global") {
        i.run = copy_async;
        i.bytes = integer(o[2][0]);
        i.space = GLOBAL;
        i.from[1] = address(i, o[1]), i.from[0] = operand(o[0][0], 4);
        i.from[2] = o.size() > 3 ? operand(o[3][0], 4) : operand(o[2][0], 4);
    } else {
        return n == "trap" && (i.run = trap);
    }
    return true;
}

void Parser::decode(const Statement &s)
{
    Instruction i = {};

    i.file = file, i.line = line;
    i.text = s.whole.data() - k.text.data(), i.text_bytes = s.whole.size();
    i.kind = kind_of(std::string(s.name));
    if (!s.guard.empty()) {
        i.guard_not = s.guard[0] == '!';
        i.guard = operand(s.guard.substr(i.guard_not), 1);
    }
    if (!decode_family(i, s)) {
        const Operation *op = find_operation(std::string(s.name));
        if (!op)
            unknown("instruction", s.name);
        i.run = op->run;
        for (size_t x = 0; x <= 4 && (x == 0 || op->from[x - 1]); x++)
            if (x >= s.operands.size() || s.operands[x].size() > 1)
                unknown("form of", s.name);
            else
                (x ? i.from[x - 1] : i.to[0]) = operand(s.operands[x][0], x ? op->from[x - 1] : op->to);
    }
    k.code.push_back(i);
}

/* Parses the head, then statement by statement up to the brace that closes the body. */
void Parser::parse(const Module &module)
{
    const View text = k.text;
    const size_t body = text.find("\n{") + 1;
    const size_t open = text.find('(');
    int depth = 0;

    if (open < body)                            /* .param .u64 name, .param ... */
        for (std::vector<View> &words : Statement(text.substr(open + 1, text.find("\n)") - open)).operands) {
            if (words[0] == ".param")
                words.erase(words.begin());
            const Declared d = declaration(words);
            k.parameter_bytes = (k.parameter_bytes + d.align - 1) / d.align * d.align;
            k.parameters.push_back({std::string(d.name), k.parameter_bytes, d.bytes});
            k.parameter_bytes += d.bytes;
        }
    if (const size_t at = text.find(".maxntid"); at < body) {
        k.most_threads = 1;
        for (const std::vector<View> &n : Statement(text.substr(at, text.find('\n', at) - at)).operands)
            k.most_threads *= integer(n[0]);
    }
    for (const std::string &declared : module.shared)
        if (const Statement s(declared); text.find(declaration(s.operands[0]).name) != View::npos)
            declare_shared(s.operands[0]);
    for (size_t at = body, end; at < text.size(); at = end) {
        const View rest = text.substr(at);
        const size_t mark = text.find_first_of(";:\n", at);
        end = at + 1;
        if (rest[0] == '{' || rest[0] == '}') {
            depth += rest[0] == '{' ? 1 : -1;
            if (depth == 0)
                break;                          /* what follows is not the kernel's */
        } else if (starts_with(rest, ".loc")) {
            sscanf(rest.data(), ".loc %u %u", &file, &line);
            end = text.find('\n', at);
        } else if (starts_with(rest, "//")) {
            end = text.find('\n', at);
        } else if (!isspace((unsigned char)rest[0]) && text[mark] == ':') {
            labels[text.substr(at, mark - at)] = k.code.size();
            end = mark + 1;
        } else if (!isspace((unsigned char)rest[0])) {
            end = text.find(';', at) + 1;
            statement = text.substr(at, end - 1 - at);
            const Statement s(statement);
            if (s.name == ".reg")
                declare_registers(s);
            else if (s.name == ".shared")
                declare_shared(s.operands[0]);
            else if (s.name != ".pragma")
                decode(s);
        }
    }
    for (const auto &b : branches) {
        if (!labels.count(b.second))
            unknown("label", b.second);
        k.code[b.first].target = labels[b.second];
    }
    k.most_dynamic_shared = (48 << 10) - k.static_shared;
}

void parse_kernel(Kernel &kernel, const Module &module)
{
    Parser{kernel, {}, {}, {}, {}, {}, 0, 0, {}}.parse(module);
}
