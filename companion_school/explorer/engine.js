// A model's forward pass in a browser, with a cache, and every number on the way.
//
// What a pass makes is kept by the name of the module that makes it in PyTorch, a row for each token: "embedding",
// "decoder.blocks.0.attention.query", "decoder.blocks.0", "decoder.norm", "logits". Beside these, of an attention:
// "turned_query" and "turned_key" after rotary positions, "scores" and "weights" of each head over the keys it sees, and
// "heads", what each read; of a network "hidden"; of experts "experts", "weights" and "answers"; and the stream after
// each addition: "after_attention", "after_cross".

// A safetensors file: its header, and its tensors as single precision. Matrices come as whole numbers of 8 bits with a
// scale for each row (`companion_school.explorer.models`).
const readModel = (bytes) => {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const start = 8 + Number(view.getBigUint64(0, true));
  const { __metadata__: said, ...header } = JSON.parse(new TextDecoder().decode(bytes.subarray(8, start)));
  const read = (name) => {
    const { dtype, data_offsets: [from, to] } = header[name];
    const buffer = bytes.slice(start + from, start + to).buffer;
    return dtype === "I8" ? new Int8Array(buffer) : new Float32Array(buffer);
  };
  const weights = {};
  for (const [name, { dtype, shape }] of Object.entries(header)) {
    if (name.endsWith(".scale")) continue;
    const data = read(name), columns = shape.at(-1);
    weights[name] = { shape, columns, data: dtype === "I8" ? scaled(data, read(`${name}.scale`), columns) : data };
  }
  const facts = Object.fromEntries(Object.entries(said).map(([name, text]) => [name, JSON.parse(text)]));
  return { ...facts, weights };
};

const scaled = (whole, scales, columns) => {
  const out = new Float32Array(whole.length);
  for (let row = 0, at = 0; row < scales.length; row++) {
    for (const end = at + columns; at < end; at++) out[at] = whole[at] * scales[row];
  }
  return out;
};

const softmax = (scores) => {
  const most = scores.reduce((a, b) => Math.max(a, b), -Infinity), powers = Float32Array.from(scores, (z) => Math.exp(z - most));
  const total = powers.reduce((a, b) => a + b, 0);
  return powers.map((p) => p / total);
};

const best = (values, count) => [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, count);

const sum = (x, y) => x.map((value, i) => value + y[i]);

// Passes of one model. `off` holds what is switched off: "decoder.blocks.0.attention.2" a head, which then adds nothing,
// "decoder.blocks.0.feed_forward.5" an expert, which the router then cannot choose.
// Of which configurations says `companion_school.explorer.models.not_computed`.
const makeEngine = ({ config, weights }) => {
  const { d_model: dModel, layers } = config, { heads } = config.attention;
  const kvHeads = config.attention.kv_heads ?? heads, dHead = config.attention.d_head ?? dModel / heads;

  // x W^T + b, for the rows `from` to `to` of W: the parts of an expert are such rows.
  const product = (x, { data, columns }, from, to) => {
    const out = new Float32Array(to - from);
    for (let row = from; row < to; row++) {
      let at = row * columns, a = 0, b = 0; // widths are even
      for (let j = 0; j < columns; j += 2, at += 2) { a += x[j] * data[at]; b += x[j + 1] * data[at + 1]; }
      out[row - from] = a + b;
    }
    return out;
  };
  const linear = (x, name) => {
    const matrix = weights[`${name}.weight`], bias = weights[`${name}.bias`];
    const out = product(x, matrix, 0, matrix.shape[0]);
    return bias ? sum(out, bias.data) : out;
  };
  const norm = (x, name) => {
    const gain = weights[`${name}.weight`].data, bias = weights[`${name}.bias`]?.data;
    const mean = config.norm.kind === "layer" ? x.reduce((a, b) => a + b, 0) / x.length : 0;
    const square = x.reduce((total, value) => total + (value - mean) ** 2, 0) / x.length;
    const scale = 1 / Math.sqrt(square + config.norm.eps);
    return x.map((value, i) => (value - mean) * scale * gain[i] + (bias ? bias[i] : 0));
  };

  // Turns the pairs (i, i + dHead / 2) of each head by the angles of a place.
  const turn = (x, place) => {
    const half = dHead / 2, out = new Float32Array(x.length);
    for (let start = 0; start < x.length; start += dHead) {
      for (let i = 0; i < half; i++) {
        const angle = place * config.positions.base ** (-i / half), cos = Math.cos(angle), sin = Math.sin(angle);
        const a = x[start + i], b = x[start + half + i];
        out[start + i] = a * cos - b * sin;
        out[start + half + i] = b * cos + a * sin;
      }
    }
    return out;
  };
  const embed = (token, place) => {
    const factor = config.embedding.scaled ? Math.sqrt(dModel) : 1;
    const row = weights["embedding.weight"].data.slice(token * dModel, (token + 1) * dModel).map((value) => value * factor);
    if (config.positions.kind === "rotary") return row;
    return row.map((value, i) => {
      const angle = place * config.positions.base ** (-(i - (i % 2)) / dModel);
      return value + (i % 2 ? Math.cos(angle) : Math.sin(angle));
    });
  };

  // Each head of one query over `seen` keys: scores and weights are (head, key), heads (head, d_head).
  const look = (query, keys, values, seen, name, off) => {
    const scores = new Float32Array(heads * seen), weighed = new Float32Array(heads * seen), read = new Float32Array(heads * dHead);
    for (let head = 0; head < heads; head++) {
      const q = head * dHead, k = Math.floor((head * kvHeads) / heads) * dHead, first = head * seen;
      for (let key = 0; key < seen; key++) {
        const row = keys[key];
        let score = 0;
        for (let i = 0; i < dHead; i++) score += query[q + i] * row[k + i];
        scores[first + key] = score / Math.sqrt(dHead);
      }
      weighed.set(softmax(scores.subarray(first, first + seen)), first);
      if (off.has(`${name}.${head}`)) continue;
      for (let key = 0; key < seen; key++) {
        const row = values[key], weight = weighed[first + key];
        for (let i = 0; i < dHead; i++) read[q + i] += weight * row[k + i];
      }
    }
    return { scores, weights: weighed, heads: read };
  };
  const attention = (inputs, name, pass, { causal, source }) => {
    const kept = (pass.kept[name] ??= { keys: [], values: [] }), turns = config.positions.kind === "rotary" && !source;
    const first = kept.keys.length;
    const keep = (x, i) => {
      const key = pass.note(`${name}.key`, linear(x, `${name}.key`));
      kept.keys.push(turns ? pass.note(`${name}.turned_key`, turn(key, first + i)) : key);
      kept.values.push(pass.note(`${name}.value`, linear(x, `${name}.value`)));
    };
    if (!source) inputs.forEach(keep);
    else if (!first) source.forEach(keep);
    return inputs.map((x, i) => {
      const plain = pass.note(`${name}.query`, linear(x, `${name}.query`));
      const query = turns ? pass.note(`${name}.turned_query`, turn(plain, first + i)) : plain;
      const found = look(query, kept.keys, kept.values, causal ? first + i + 1 : kept.keys.length, name, pass.off);
      for (const [part, value] of Object.entries(found)) pass.note(`${name}.${part}`, value);
      return pass.note(name + ".output", linear(found.heads, `${name}.output`));
    });
  };

  const activated = (inner, gate) => (gate ? inner.map((value, i) => (value * gate[i]) / (1 + Math.exp(-gate[i]))) : inner.map((value) => Math.max(value, 0)));
  const network = (x, name, pass) => {
    const gate = weights[`${name}.gate.weight`] && pass.note(`${name}.gate`, linear(x, `${name}.gate`));
    const hidden = pass.note(`${name}.hidden`, activated(pass.note(`${name}.inner`, linear(x, `${name}.inner`)), gate));
    return pass.note(name, linear(hidden, `${name}.outer`));
  };
  const mixture = (x, name, pass) => {
    const scores = pass.note(`${name}.router`, linear(x, `${name}.router`));
    const open = [...scores.keys()].filter((expert) => !pass.off.has(`${name}.${expert}`));
    const chosen = open.sort((a, b) => scores[b] - scores[a] || a - b).slice(0, config.moe.top_k);
    const shares = softmax(Float32Array.from(chosen, (expert) => scores[expert]));
    const [gate, inner, outer] = ["gate", "inner", "outer"].map((part) => weights[`${name}.${part}`]);
    const part = (from, matrix, expert) => product(from, matrix, expert * matrix.shape[1], (expert + 1) * matrix.shape[1]);
    const answers = chosen.map((expert) => part(activated(part(x, inner, expert), gate && part(x, gate, expert)), outer, expert));
    pass.note(`${name}.experts`, Float32Array.from(chosen));
    pass.note(`${name}.weights`, shares);
    pass.note(`${name}.answers`, Float32Array.from(answers.flatMap((answer) => [...answer])));
    return pass.note(name, answers[0].map((_, i) => answers.reduce((total, answer, at) => total + shares[at] * answer[i], 0)));
  };

  const block = (stream, name, pass, options) => {
    const step = (part, after, layer) => {
      const inputs = stream.map((x) => pass.note(`${name}.${part}_norm`, norm(x, `${name}.${part}_norm`)));
      layer(inputs, `${name}.${part}`).forEach((added, i) => { stream[i] = pass.note(after, sum(stream[i], added)); });
    };
    step("attention", `${name}.after_attention`, (inputs, place) => attention(inputs, place, pass, { causal: options.causal }));
    if (options.source) step("cross", `${name}.after_cross`, (inputs, place) => attention(inputs, place, pass, { source: options.source }));
    const layer = config.moe ? mixture : network;
    step("feed_forward", name, (inputs, place) => inputs.map((x) => layer(x, place, pass)));
  };
  const run = (stack, tokens, pass, options) => {
    const first = pass.tokens[stack].length, stream = tokens.map((token, i) => pass.note(`${stack}.embedding`, embed(token, first + i)));
    pass.tokens[stack].push(...tokens);
    for (let layer = 0; layer < layers; layer++) block(stream, `${stack}.blocks.${layer}`, pass, options);
    return stream.map((x) => pass.note(`${stack}.norm`, norm(x, `${stack}.norm`)));
  };

  const head = (x) => linear(x, "embedding");
  return {
    layers, heads, dHead, experts: config.moe?.experts ?? 0,
    // A pass that has read nothing of its text yet, and all of its source, where the model has one.
    begin({ source = null, off = new Set() } = {}) {
      const seen = {}, pass = { seen, off, kept: {}, tokens: { encoder: [], decoder: [] } };
      pass.note = (name, row) => { (seen[name] ??= []).push(row); return row; };
      pass.memory = source && run("encoder", source, pass, { causal: false });
      return pass;
    },
    // Reads more tokens, each once: keys and values of those before are kept. Gives the logits after the last.
    read(pass, tokens) {
      const states = run("decoder", tokens, pass, { causal: true, source: pass.memory });
      return states.map((x) => pass.note("logits", head(x))).at(-1);
    },
    // Goes on from a state that is put in the place of the stream's at a token after a layer (0: the embedding), with
    // all that the pass has made before it. Gives the logits after the token `end`.
    patched(pass, layer, at, state, end, off = pass.off) {
      const name = layer ? `decoder.blocks.${layer - 1}` : "decoder.embedding", stream = pass.seen[name].slice(at, end + 1), kept = {};
      for (const [part, { keys, values }] of Object.entries(pass.kept)) {
        const seen = part.includes("cross") ? keys.length : at;
        kept[part] = { keys: keys.slice(0, seen), values: values.slice(0, seen) };
      }
      stream[0] = state;
      const side = { kept, off, note: (_, row) => row };
      for (; layer < layers; layer++) block(stream, `decoder.blocks.${layer}`, side, { causal: true, source: pass.memory });
      return head(norm(stream.at(-1), "decoder.norm"));
    },
    // The logits after the token `end` with one more head off: from its layer on, all is computed anew.
    without(pass, name, head, end) {
      const [stack, , layer] = name.split("."), off = new Set([...pass.off, `${name}.${head}`]), { encoder, decoder } = pass.tokens;
      if (stack === "encoder") return this.read(this.begin({ source: encoder, off }), decoder.slice(0, end + 1));
      const before = Number(layer) ? `decoder.blocks.${layer - 1}` : "decoder.embedding";
      return this.patched(pass, Number(layer), 0, pass.seen[before][0], end, off);
    },
    // The `count` likeliest tokens with their chances that the last norm and the table make of a state (the logit lens).
    lens(pass, name, at, count) {
      const p = softmax(head(norm(pass.seen[name][at], "decoder.norm")));
      return best(p, count).map((token) => [token, p[token]]);
    },
  };
};
