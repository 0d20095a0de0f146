// Encoding and decoding, as in `companion.data.tokenizer` and `companion.data.number_words`.

// The printable character that stands for each byte in byte-level BPE.
const byteSymbols = () => {
  const own = (byte) => (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte < 0xad) || byte > 0xad;
  let others = 0;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(own(byte) ? byte : 256 + others++));
};

const bytePairs = ({ vocab, merges, separator }) => {
  const symbols = byteSymbols(), byteOf = new Map(symbols.map((symbol, byte) => [symbol, byte]));
  const ids = new Map(vocab.map((piece, id) => [piece, id])), ranks = new Map(merges.map((pair, rank) => [pair, rank]));
  const pieces = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;
  const merged = (parts) => {
    for (;;) {
      const rank = (i) => ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
      let best = 0;
      for (let i = 1; i + 1 < parts.length; i++) if (rank(i) < rank(best)) best = i;
      if (parts.length < 2 || rank(best) === Infinity) return parts;
      parts.splice(best, 2, parts[best] + parts[best + 1]);
    }
  };
  const encode = (text) => (text.match(pieces) ?? []).flatMap((piece) =>
    merged([...new TextEncoder().encode(piece)].map((byte) => symbols[byte])).map((part) => ids.get(part)));
  const bytesOf = (id) => (id === separator ? [] : [...vocab[id]].map((symbol) => byteOf.get(symbol)));
  const decode = (tokens) => new TextDecoder().decode(Uint8Array.from(tokens.flatMap(bytesOf)));
  const piece = (id) => (id === separator ? "⏎" : decode([id]));
  // The single token that a text encodes to, with a leading space if the token `like` has one; undefined if it is not one token.
  const token = (text, like) => {
    const ways = piece(like).startsWith(" ") ? [` ${text.trimStart()}`, text] : [text, ` ${text}`];
    return ways.map(encode).find((found) => found.length === 1)?.[0];
  };
  return { encode, decode, piece, token, start: [separator], stop: separator };
};

// The parts of number names. A source with an unknown part raises an error.
const numberParts = ({ vocabulary, parts, bos, eos }) => {
  const ids = new Map(vocabulary.map((piece, id) => [piece, id]));
  const encode = (text) => {
    const found = text.normalize("NFC").toLowerCase().replace(/\s+/g, "").split(new RegExp(`(${parts})`)).filter(Boolean);
    const wrong = found.find((piece) => !ids.has(piece));
    if (wrong !== undefined || !found.length) throw new Error(wrong ? `“${wrong}” is not part of a German number name` : "expected a German number name");
    return found.map((piece) => ids.get(piece));
  };
  const decode = (tokens) => tokens.filter((id) => id > eos).map((id) => vocabulary[id]).join(" ").replaceAll(" - ", "-").replaceAll(" ,", ",");
  return { encode, decode, piece: (id) => vocabulary[id], token: (text) => ids.get(text.trim()), start: [bos], stop: eos };
};

// If Python encodes the text, this has the text of each token.
const piecesAlone = (pieces, stop) => {
  const decode = (tokens) => tokens.map((id) => pieces[id]).join("");
  const token = (text, like) => {
    const ways = pieces[like]?.startsWith(" ") ? [` ${text.trimStart()}`, text] : [text, ` ${text}`];
    return ways.map((way) => pieces.indexOf(way)).find((id) => id >= 0);
  };
  return { decode, piece: (id) => pieces[id], token, stop };
};

const makeWords = ({ pairs, names, pieces, stop }) => (pairs ? bytePairs(pairs) : names ? numberParts(names) : piecesAlone(pieces, stop));
