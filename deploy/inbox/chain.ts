// Notices that a message is missing or out of order, by the header Sluicebox-Chain. chain/chain.go has the reasons.

export type Verdict = "none" | "follows" | "repeat" | "joined" | "gap";

const maxChains = 100_000; // a chain that was forgotten is joined again
const maxHashes = 10_000; // of a chain; more than any request has

type State = { accepted: number; joined: boolean; known: string[] };

// Chains has the state of each chain, for all messages of a group that come to this process.
export class Chains {
  private readonly chains = new Map<string, State>(); // the last used last

  // accept takes the header of a message that is accepted, before the answer.
  accept(header: string | undefined): Verdict {
    const [name, count, before, hash, more] = (header ?? "").split(";");
    if (name === undefined || before === undefined || hash === undefined || more !== undefined || !/^\d{1,15}$/.test(count ?? "")) return "none";
    const accepted = Number(count);
    const state = this.chains.get(name);
    if (state) {
      this.chains.delete(name);
      this.chains.set(name, state);
      return follow(state, accepted, before, hash);
    }
    const first = accepted === 0 && before === "0";
    this.chains.set(name, { accepted, joined: !first, known: [before, hash] });
    if (this.chains.size > maxChains) for (const oldest of this.chains.keys()) {
      this.chains.delete(oldest);
      break;
    }
    return first ? "follows" : "joined";
  }
}

function follow(state: State, accepted: number, before: string, hash: string): Verdict {
  if (accepted < state.accepted || (accepted === state.accepted && state.known.includes(hash))) return "repeat";
  let verdict: Verdict = "gap";
  if (state.known.includes(before)) {
    verdict = "follows";
    if (accepted > state.accepted) [state.known, state.joined] = [[before], false];
  } else if (state.joined) {
    verdict = "joined";
    if (accepted > state.accepted) state.known = [before];
  } else {
    state.known.push(before);
  }
  state.accepted = accepted;
  state.known.push(hash);
  if (state.known.length > maxHashes) state.known.splice(0, maxHashes / 2);
  return verdict;
}
