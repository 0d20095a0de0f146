// Two clocks that turn by the same step at each place: moved together, the angle between their hands stays.
(box, data, kit) => {
  const R = 88, [far, near] = [data.places - 1, data.distances - 1], deg = 180 / Math.PI;
  const length = ([x, y]) => Math.hypot(x, y), angle = ([x, y]) => Math.atan2(y, x) * deg;
  const longest = Math.max(length(data.query), length(data.key));
  const at0 = [angle(data.query), angle(data.key)], names = data.words, colours = ["var(--blue)", "var(--red)"];
  const unturned = ((((at0[0] - at0[1] + 180) % 360) + 360) % 360) - 180;
  const range = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => from + i);
  let place = data.start, apart = data.apart, timer;
  const along = kit.handle("positions of the two words", range(near, far), place, (m) => `${m - apart} and ${m}`, (m) => { place = m; show(); });
  kit.button("▶ walk", () => {
    if (timer) { clearInterval(timer); timer = 0; return; }
    timer = setInterval(() => {
      if (!box.isConnected || place >= far) { clearInterval(timer); timer = 0; return; }
      along.value = place += 1;
      show();
    }, 420);
  });
  kit.nextRow();
  kit.handle("distance between the words", range(0, near), apart, (d) => `${d} apart`, (d) => { apart = d; along.value = place; show(); });
  const draw = kit.picture(760, 322), Y = 188;
  // The text as a line of places, with the two words on it.
  const spot = (m) => 24 + (m / far) * 712;
  kit.svg(draw, "line", { x1: spot(0), x2: spot(far), y1: 34, y2: 34, stroke: "var(--edge)" });
  range(0, far).forEach((m) => kit.svg(draw, "line", { x1: spot(m), x2: spot(m), y1: 34, y2: m % 10 ? 38 : 42, stroke: "var(--edge)" }));
  range(0, far).filter((m) => m % 10 === 0).forEach((m) => kit.svg(draw, "text", { x: spot(m), y: 58, "text-anchor": "middle", class: "small quiet" }, String(m)));
  const marks = [0, 1].map((i) => ({
    dot: kit.svg(draw, "circle", { cy: 34, r: 6, fill: colours[i], class: "move" }),
    name: kit.svg(draw, "text", { y: 16, "text-anchor": i ? "end" : "start", class: "strong" }, names[i]),
  }));
  const dial = (x) => {
    const centre = kit.svg(draw, "g", { transform: `translate(${x} ${Y})` });
    kit.svg(centre, "circle", { r: R, fill: "none", stroke: "var(--edge)" });
    range(0, 11).forEach((hour) => kit.svg(centre, "line", { x1: R - 6, x2: R, y1: 0, y2: 0, stroke: "var(--edge)", transform: `rotate(${hour * 30})` }));
    return centre;
  };
  const hand = (centre, i, pale) => {
    const turning = kit.svg(centre, "g", { class: "move" }), end = ((R - 10) * length(i ? data.key : data.query)) / longest;
    const look = { stroke: colours[i], "stroke-width": pale ? 1.5 : 4, "stroke-linecap": "round", "stroke-opacity": pale ? 0.75 : 1, "stroke-dasharray": i ? (pale ? "2 4" : "7 6") : pale ? "2 4" : "none" };
    kit.svg(turning, "line", { x1: 0, y1: 0, x2: end - (pale ? 0 : 10), y2: 0, ...look });
    if (!pale) kit.svg(turning, "path", { d: `M${end} 0 l-13 -6 v12 z`, fill: colours[i] });
    return turning;
  };
  const turn = (element, degrees) => { element.style.transform = `rotate(${-degrees}deg)`; };
  const own = [0, 1].map((i) => {
    const centre = dial(110 + i * 250);
    turn(hand(centre, i, true), at0[i]);
    return { hand: hand(centre, i), name: kit.svg(draw, "text", { x: 110 + i * 250, y: Y + R + 22, "text-anchor": "middle" }), sum: kit.svg(draw, "text", { x: 110 + i * 250, y: Y + R + 40, "text-anchor": "middle", class: "small quiet" }) };
  });
  const both = dial(630), sector = kit.svg(both, "path", { fill: "var(--green)", "fill-opacity": 0.35, stroke: "var(--green)", class: "move" });
  const pair = [hand(both, 0), hand(both, 1)];
  const between = kit.svg(draw, "text", { x: 630, y: Y + R + 22, "text-anchor": "middle", class: "strong" });
  const score = kit.svg(draw, "text", { x: 630, y: Y + R + 40, "text-anchor": "middle", class: "strong" });
  const show = () => {
    const places = [place, place - apart], angles = places.map((m, i) => at0[i] + m * data.step * deg);
    // Counted on from the angle at distance 0: 153, 183, ... and not 153, -177.
    const gap = unturned + apart * data.step * deg, sweep = gap % 360, end = sweep / deg, r = R * 0.55;
    places.forEach((m, i) => {
      marks[i].dot.setAttribute("cx", spot(m));
      kit.put(marks[i].name, { x: spot(m) + (i ? 5 : -5) });
      turn(own[i].hand, angles[i]);
      turn(pair[i], angles[i]);
      own[i].name.textContent = `${i ? "key" : "query"} of “${names[i]}”, at ${m}`;
      own[i].sum.textContent = `turned ${m} × ${kit.fixed(data.step * deg, 0)}° = ${kit.fixed(m * data.step * deg, 0)}°`;
    });
    // Drawn from the key's hand to the query's, and turned with the key: moved together, it turns as one piece.
    sector.setAttribute("d", `M0 0 L${r} 0 A${r} ${r} 0 ${Math.abs(sweep) > 180 ? 1 : 0} ${sweep > 0 ? 0 : 1} ${r * Math.cos(end)} ${-r * Math.sin(end)} Z`);
    turn(sector, angles[1]);
    const dot = length(data.query) * length(data.key) * Math.cos(end);
    between.textContent = `between them: ${kit.fixed(gap, 0)}°`;
    score.textContent = `score q · k = ${kit.fixed(dot)}`;
    kit.numbers("at every distance", [[`rotated, “${names[0]}” at ${places[0]}`, `${kit.fixed(angles[0], 0)}°`], [`“${names[1]}” at ${places[1]}`, `${kit.fixed(angles[1], 0)}°`], ["between", `${kit.fixed(gap, 0)}°`], ["score", dot]]);
    kit.say(`“${names[0]}” at ${places[0]} and “${names[1]}” at ${places[1]}: ${kit.fixed(gap, 0)}° between the hands, a score of ${kit.fixed(dot)}. Both depend only on the distance, ${apart}, and not on the positions themselves.`);
  };
  show();
}
