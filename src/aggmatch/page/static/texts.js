// Names and explanations of the lists of images.

import { percent } from "./dom.js";

export const LISTS = {
  label: [["queue", "To label"], ["labeled", "Labelled"], ["unsure", "Not sure"], ["skipped", "Skipped"], ["all", "All"]],
  review: [["doubtful", "Doubtful"], ["wrong", "Wrong labels?"], ["confident", "Confident"]],
};
export const LEADS = {
  queue: "The images that teach most come first.",
  doubtful: "Predictions with the least consensus come first. Give them a label.",
  wrong: "Labels that other images contradict. Accept the other class, or press the key of your class again to keep it.",
  confident: "Predictions with the most consensus. All are selected: click the wrong ones to deselect them, or press the right key to correct the last one clicked. Then accept the others.",
};
export const NOTHING = {
  queue: "Nothing is left to label.",
  wrong: "No label looks wrong.",
  doubtful: "There are no predictions yet: train a model first.",
  confident: "There are no predictions of this class.",
};

export function guessOf(item, between) {
  if (!item.guess) return "no guess yet";
  const parts = [`${item.guess} ${percent(item.prob)}`];
  if (item.consensus) parts.push(`consensus ${percent(item.consensus)}`);
  return parts.join(between);
}
